// ConvertGrammar: see request_conversion.h.
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "models/grammar/json_schema_check.h"
#include "models/json_reader.h"
#include "server/calls/request_conversion.h"

namespace fox {
namespace {

using Ordered = nlohmann::ordered_json;  // properties are written in the order of their schema

constexpr int kMaxTools = 128;

bool IsToolName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
}

// What follows the name in a call of it, as the library's tag.
absl::StatusOr<Ordered> TagOf(const std::string& text, const ToolFormat& format,
                              std::string* name) {
  const JsonLimits limits = {text.size(), kMaxSchemaDepth, text.size()};
  const bool read = ReadJsonObject(text, limits, "the tool").ok();
  const Ordered tool = read ? Ordered::parse(text) : Ordered::object();
  const Ordered function = tool.value("function", Ordered());
  const Ordered named = function.is_object() ? function.value("name", Ordered()) : Ordered();
  if (tool.value("type", Ordered()) != "function" || !named.is_string()) {
    return absl::InvalidArgumentError(
        R"(function: must be {"type": "function", "function": {"name": .., "parameters": {..}}})");
  }
  *name = named.get<std::string>();
  if (!IsToolName(*name)) {
    return absl::InvalidArgumentError("function.name: must be 1 to 64 letters, digits, _ and -");
  }
  Ordered schema = function.value("parameters", Ordered());
  if (schema.is_null()) schema = Ordered::object();
  if (schema.is_object() && !schema.contains("type")) schema["type"] = "object";
  if (!schema.is_object() || schema["type"] != "object") {
    return absl::InvalidArgumentError("function.parameters: must be the schema of an object");
  }
  if (absl::Status status = CheckJsonSchema(schema.dump()); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("function.parameters: ", status.message()));
  }
  return Ordered{{"type", "tag"},
                 {"begin", absl::StrCat(format.call, *name, format.arguments)},
                 {"content", {{"type", "json_schema"}, {"json_schema", std::move(schema)}}},
                 {"end", format.call_end}};
}

// Text with calls in it; or calls alone, or calls or what the answer has to be without them.
absl::Status AddTools(const v1::ChatMessages& in, const ToolFormat& format, GenerationSpec* spec) {
  if (in.tools_size() > kMaxTools) {
    return absl::InvalidArgumentError(absl::StrCat("tools: at most ", kMaxTools));
  }
  Ordered tags = Ordered::array();
  std::set<std::string> names;
  size_t bytes = 0;
  for (const std::string& text : in.tools()) {
    const std::string field = absl::StrCat("tools[", names.size(), "]");
    bytes += text.size();
    if (bytes > kMaxGrammarBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": the tools up to here have more than ", kMaxGrammarBytes, " bytes"));
    }
    std::string name;
    absl::StatusOr<Ordered> tag = TagOf(text, format, &name);
    if (!tag.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".", tag.status().message()));
    }
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".function.name: is there twice"));
    }
    if (!in.has_call_name() || in.call_name() == name) tags.push_back(*std::move(tag));
  }
  if (tags.empty())
    return absl::InvalidArgumentError("tools: there is none to call, or none of that name");
  Ordered calls = {{"tags", std::move(tags)},
                   {"stop_after_first", in.one_call() || in.has_call_name()}};
  const bool required = in.call_required() || in.has_call_name();
  if (required || spec->grammar.has_value()) {
    calls.update(
        {{"type", "tags_with_separator"}, {"separator", format.separator}, {"at_least_one", true}});
  } else {
    calls.update({{"type", "triggered_tags"}, {"triggers", {format.trigger}}});
  }
  if (!required && spec->grammar.has_value()) {
    const std::string& schema = spec->grammar->text;
    if (absl::Status status = CheckJsonSchema(schema); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(spec->grammar_field, ": ", status.message()));
    }
    Ordered text = calls;  // in a form that the library takes beside calls
    text["tags"] = Ordered::array(
        {{{"type", "tag"},
          {"begin", ""},
          {"content", {{"type", "json_schema"}, {"json_schema", Ordered::parse(schema)}}},
          {"end", ""}}});
    text["stop_after_first"] = true;
    calls = {{"type", "or"}, {"elements", Ordered::array({std::move(calls), std::move(text)})}};
  }
  spec->grammar_field = "tools";
  spec->grammar = {GrammarSource::Kind::kStructuralTag,
                   Ordered{{"type", "structural_tag"}, {"format", std::move(calls)}}.dump()};
  return absl::OkStatus();
}

}  // namespace

absl::Status ConvertGrammar(const v1::GenerateRequest& request, const ConversionContext& context,
                            GenerationSpec* spec) {
  using Kind = GrammarSource::Kind;
  const v1::Sampling& in = request.sampling();
  int count = 0;
  const auto take = [&](bool set, const char* field, GrammarSource source) {
    if (!set) return;
    ++count;
    spec->grammar_field = field;
    spec->grammar = std::move(source);
  };
  take(in.has_json_schema(), "sampling.json_schema", {Kind::kJsonSchema, in.json_schema()});
  take(in.has_regex(), "sampling.regex", {Kind::kRegex, in.regex()});
  take(in.has_grammar(), "sampling.grammar", {Kind::kGrammar, in.grammar()});
  take(in.json_object(), "sampling.json_object",
       {Kind::kJsonSchema, R"({"type": "object", "additionalProperties": true})"});
  if (in.choice_size() > 0) {
    take(true, "sampling.choice", ChoiceGrammar({in.choice().begin(), in.choice().end()}));
  }
  if (count > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec->grammar_field,
                     ": at most one of json_schema, json_object, regex, grammar and choice"));
  }
  const v1::ChatMessages& chat = request.messages();
  if (chat.tools_size() > 0 || chat.call_required() || chat.has_call_name()) {
    if (context.chat == nullptr || !context.chat->tools().has_value()) {
      return absl::FailedPreconditionError(
          "tools: the model's chat format does not say how they are called");
    }
    if (spec->grammar.has_value() && spec->grammar->kind != Kind::kJsonSchema) {
      return absl::InvalidArgumentError(absl::StrCat(spec->grammar_field, ": not beside tools"));
    }
    absl::Status status = AddTools(chat, *context.chat->tools(), spec);
    if (!status.ok()) return status;
  }
  if (!spec->grammar.has_value()) return absl::OkStatus();
  if (context.grammars == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        spec->grammar_field, ": the model has no tokenizer, or one whose text is escaped"));
  }
  return absl::OkStatus();
}

}  // namespace fox
