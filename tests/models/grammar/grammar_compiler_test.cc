// GrammarCompiler: the caches of tenants, the charges for grammars in use, and refusals of grammars
// that would be too large to follow.
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/grammar/call_grammar.h"
#include "models/grammar/grammar.h"
#include "models/grammar/json_schema.h"

namespace fox {
namespace {

using Kind = GrammarSource::Kind;

constexpr int32_t kEnd = 0;  // a token without text

// All bytes, and words.
std::vector<std::string> Tokens() {
  std::vector<std::string> tokens = {""};
  for (int byte = 1; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* word : {"true", " the", "name", "\": ", "{\"", "12"}) tokens.emplace_back(word);
  return tokens;
}

GrammarCompiler& Compiler() {
  static GrammarCompiler compiler(Tokens);
  return compiler;
}

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// A grammar is charged for while it is used. The cache is bounded and drops old grammars.
TEST(GrammarCompilerTest, ChargesForGrammarsInUseAndCachesTheLatest) {
  GrammarCompiler compiler(Tokens);
  const GrammarSource digits{Kind::kRegex, "[0-9]+"};
  int64_t paid = 0;
  const auto charge = [&](int64_t bytes) -> absl::StatusOr<std::shared_ptr<void>> {
    paid += bytes;
    return std::shared_ptr<void>(nullptr, [&paid, bytes](void*) { paid -= bytes; });
  };
  auto first = *compiler.Compile(digits, 0, charge);
  EXPECT_GE(paid, first->bytes());
  EXPECT_EQ(*compiler.Compile(digits, 0, charge), first);
  EXPECT_EQ(*compiler.Find(digits, 0, charge), first);
  EXPECT_GT(compiler.kept_bytes(), 0);
  first = nullptr;
  EXPECT_EQ(paid, 0);
  const auto full = [](int64_t) -> absl::StatusOr<std::shared_ptr<void>> {
    return absl::ResourceExhaustedError("full");
  };
  EXPECT_TRUE(absl::IsResourceExhausted(compiler.Find(digits, 0, full).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(compiler.Compile({Kind::kRegex, "x"}, 0, full).status()));
  int64_t most = 0, compiled = 0;
  for (int i = 0; i < 100 && compiled < (80 << 20); ++i) {
    const auto grammar =
        compiler.Compile({Kind::kRegex, absl::StrCat(Times(5000, "x"), i)}, 0, charge);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    compiled += (*grammar)->bytes();
    most = std::max(most, compiler.kept_bytes());
  }
  EXPECT_GT(most, 32 << 20);
  EXPECT_LE(most, 64 << 20);
  EXPECT_EQ(paid, 0);
  EXPECT_EQ(*compiler.Find(digits), nullptr);
}

// A client with thirty tools learns from the refusal which tool to change.
TEST(GrammarCompilerTest, ARefusalNamesThePartThatIsTooLarge) {
  std::string list = R"({"enum": [0)", classes = R"({"properties": {"": {})";
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&list, ",\"", i * 7919, i * 104729, "\"");
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&classes, R"(, "p)", i, R"(": {"pattern": "^[\u)",
                    absl::Hex(0x100 + i, absl::kZeroPad4), R"(-\u2fff]{0,16}$"})");
  }
  const std::pair<std::string, std::string> cases[] = {
      {list + "]}", "tool1#/properties/many: too large or too ambiguous"},
      {classes + "}}", "tool1#/properties/many/properties: more than 16384 rules"}};
  for (const auto& [many, error] : cases) {
    EbnfRules rules;
    std::vector<CallForm> calls;
    for (const std::string& schema : {std::string(R"({"type": "object"})"),
                                      R"({"properties": {"few": {}, "many": )" + many + "}}"}) {
      const std::string name = absl::StrCat("tool", calls.size());
      rules.set_place(name + "#");
      const std::string rule = AddSchemaRules(schema, /*relax=*/false, &rules)->root;
      calls.push_back({absl::StrCat("<c>", name, " "), rule, "</c>"});
    }
    const auto grammar = Compiler().Compile(CallGrammar(calls, {"<c>", "", ""}, &rules));
    EXPECT_EQ(std::string(grammar.status().message()), error);
  }
}

TEST(GrammarCompilerTest, TenantsHaveSeparateCaches) {
  GrammarCompiler compiler(Tokens);
  const GrammarSource digits{Kind::kRegex, "[0-9]+"};
  const auto first = *compiler.Compile(digits, /*tenant=*/1);
  EXPECT_EQ(*compiler.Find(digits, 2), nullptr);
  const auto second = *compiler.Compile(digits, 2);
  EXPECT_NE(first, second);
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(compiler.Compile({Kind::kRegex, absl::StrCat(Times(5000, "x"), i)}, 2).ok()) << i;
  }
  EXPECT_EQ(*compiler.Find(digits, 1), first);
  EXPECT_EQ(*compiler.Find(digits, 2), nullptr);
}

// Compares bytes() with glibc's count of allocated memory.
TEST(GrammarCompilerTest, BytesOfAGrammarAreItsMemory) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "not the memory of the program";
#endif
  GrammarCompiler compiler(Tokens);
  ASSERT_TRUE(compiler.Compile({Kind::kRegex, "first"}).ok());
  const auto heap = [] { return static_cast<int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd); };
  const auto source = [](int kind, int i) -> GrammarSource {
    if (kind == 0) return {Kind::kRegex, absl::StrCat("a", i)};
    if (kind == 1) return {Kind::kJsonSchema, absl::StrCat(R"({"const": )", i, "}")};
    if (kind == 2) return {Kind::kRegex, absl::StrCat("([a-z]+ ){1,9}", i)};
    return {Kind::kJsonSchema, absl::StrCat(R"({"properties": {"a)", i, R"(": {"type": "string"},
                                                 "b": {"type": "integer"}}})")};
  };
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(source(kind, 0).text);
    const int64_t before = heap(), kept = compiler.kept_bytes();
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(compiler.Compile(source(kind, i)).ok()) << i;
    const int64_t takes = heap() - before, says = compiler.kept_bytes() - kept;
    RecordProperty(absl::StrCat("takes", kind), std::to_string(takes / 200));
    RecordProperty(absl::StrCat("says", kind), std::to_string(says / 200));
    EXPECT_LE(takes, says);
    EXPECT_GE(2 * takes, says);
  }
}

// A grammar whose first mask is too much work, or that no token begins, is refused when it is
// compiled, and so takes none of the engine's time.
TEST(GrammarCompilerTest, RefusesAGrammarThatCannotBeFollowed) {
  GrammarCompiler many([] {
    std::vector<std::string> tokens = Tokens();
    for (int i = 0; i < 20000; ++i) tokens.push_back(absl::StrCat("w", i));
    return tokens;
  });
  const absl::Status status = many.Compile({Kind::kRegex, "(.?){999}"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  GrammarCompiler letters([] { return std::vector<std::string>{"", "a", "b"}; });
  EXPECT_TRUE(absl::IsInvalidArgument(letters.Compile({Kind::kRegex, "c"}).status()));
  const GrammarMatcher matcher(*letters.Compile({Kind::kGrammar, "root ::= \"\""}), {kEnd});
  EXPECT_TRUE(matcher.must_end() && matcher.may_end());
}

TEST(GrammarCompilerTest, AQuickTryGivesUpEarly) {
  const GrammarSource large{Kind::kRegex, Times(900, "[a-z]?x.*")};
  const auto try_it = [&](GrammarCompiler::Effort effort) {
    return Compiler().Compile(large, 0, nullptr, effort).status();
  };
  EXPECT_TRUE(absl::IsAborted(try_it(GrammarCompiler::Effort::kQuick)));
  EXPECT_EQ(try_it(GrammarCompiler::Effort::kWhole), absl::OkStatus());
}

// Also on the smallest stack that a system gives its threads. A stack that suffices is used.
TEST(GrammarCompilerTest, DepthIsBoundedByTheThreadsStack) {
  for (const size_t stack : {size_t{512 << 10}, size_t{2 << 20}, size_t{8 << 20}}) {
    SCOPED_TRACE(stack);
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_attr_init(&attributes), 0);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, stack), 0);
    pthread_t thread = {};
    const auto compile = [](void*) -> void* {
      const GrammarSource sources[] = {
          {Kind::kRegex, Times(20000, "(") + "a" + Times(20000, ")")},
          {Kind::kRegex, Times(20000, "(a|") + "a" + Times(20000, ")")},
          {Kind::kRegex, Times(20000, "(a") + Times(20000, ")*")},
          {Kind::kGrammar, "root ::= " + Times(20000, "(") + "\"a\"" + Times(20000, ")")},
          {Kind::kGrammar, "root ::= " + Times(60000, "(")},
          {Kind::kJsonSchema, Times(20000, "[")},
      };
      for (const GrammarSource& source : sources) {
        EXPECT_TRUE(absl::IsInvalidArgument(Compiler().Compile(source).status()))
            << source.text.substr(0, 20);
      }
      const std::string nested = Times(200, "(") + "a" + Times(200, ")");
      EXPECT_EQ(Compiler().Compile({Kind::kRegex, nested}).status(), absl::OkStatus());
      return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, &attributes, compile, nullptr), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
  }
}

}  // namespace
}  // namespace fox
