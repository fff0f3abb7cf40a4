# Provides the target fox_xgrammar: the core of the xgrammar library, static, without its Python
# bindings and kernels. The library cannot be interrupted and has no limits, so calls of
# work_meter.h are put where it loops, recurses and grows.
set(FOX_XGRAMMAR_VERSION 0.1.28)
set(FOX_XGRAMMAR_SHA256 8e7edc1ff7a9030f6a16021fc3bed5f0c86ead28be5b9d30305993c6670132cd)
fox_source_package(xgrammar ${FOX_XGRAMMAR_VERSION} ${FOX_XGRAMMAR_SHA256} source)
if(NOT source)
  message(FATAL_ERROR "No xgrammar sources: put xgrammar-${FOX_XGRAMMAR_VERSION}.tar.gz into "
                      "${CMAKE_BINARY_DIR}/_deps/xgrammar")
endif()

function(fox_patch_xgrammar file anchor replacement)
  file(READ ${source}/cpp/${file} text)
  string(FIND "${text}" "${replacement}" done)
  if(done EQUAL -1)
    string(REPLACE "${anchor}" "${replacement}" patched "${text}")
    if(patched STREQUAL text)
      message(FATAL_ERROR "xgrammar's ${file} has no \"${anchor}\"")
    endif()
    file(WRITE ${source}/cpp/${file} "${patched}")
  endif()
endfunction()
# fox_meter(file anchor units): counts `units` of work behind each place of the anchor.
function(fox_meter file anchor units)
  fox_patch_xgrammar(${file} "${anchor}" "${anchor} fox::SpendWork(${units});")
endfunction()
fox_meter(grammar_impl.h "GrammarExpr GetGrammarExpr(int32_t grammar_expr_id) const {" 1)
fox_meter(grammar_builder.h "int32_t AddGrammarExpr(const GrammarExpr& grammar_expr) {"
          "8 + 4 * grammar_expr.data_len")
fox_meter(ebnf_script_creator.h "    rules_.emplace_back(rule_name, rule_body);"
          "64 + rule_body.size()")
fox_meter(grammar_parser.cc "int32_t EBNFParser::ParseChoices() {" 1)
# Each character that is counted alone takes a mask, 128 of them seconds.
fox_patch_xgrammar(grammar_parser.cc "kUnzipThreshold = 128;" "kUnzipThreshold = 16;")
fox_meter(grammar_parser.cc "static const int64_t kUnzipThreshold = 16;" "lower / 2 + upper / 2")
# Characters that texts or classes follow, as `"` in JSON, or the end of a regular expression: each
# number of them is counted in one way, and what comes behind each is known, up to the first
# character, of a text its first byte; for the end that is a byte of no text. Most tokens are then
# allowed or not without a look at each. The last 16 characters have a mask each, and a rule counts
# those before them; the last 32, 64 and 128 are parted from those before, for the few tokens that
# are so long. Strings of all lengths share these rules.
fox_patch_xgrammar(grammar_parser.cc "  GrammarBuilder builder_;\n"
[==[  GrammarBuilder builder_;
  struct Counters {
    std::vector<int32_t> rests;  // rules of at most so many characters, from one on
    std::map<int64_t, int32_t> before;
    int32_t any = -1, next = -1;  // as many as wanted; what may come behind
  };
  std::map<std::vector<int32_t>, Counters> counters_;  // of characters before a text

  // 128: any character beyond ASCII.
  bool MayBegin(int32_t part, int32_t character) {
    const auto expr = builder_.GetGrammarExpr(part);
    if (expr.type == GrammarBuilder::GrammarExprType::kByteString) return expr[0] == character;
    if (expr.type != GrammarBuilder::GrammarExprType::kCharacterClass) return true;
    bool is_listed = false;
    fox::SpendWork(expr.size());
    for (int i = 1; i < expr.size(); i += 2) {
      is_listed |= expr[i] <= character && character <= expr[i + 1];
    }
    return is_listed != (expr[0] != 0);
  }
  // A class, or a text's first byte; the end of a regular expression is one, too. -1: another.
  int32_t ParseFirst() {
    if (Peek().type == TokenType::LBracket) return ParseCharClass();
    if (Peek().type == TokenType::EndOfFile && root_rule_name_ == "regex") {
      return builder_.AddByteString("\xff");
    }
    if (Peek().type != TokenType::StringLiteral || Peek().lexeme == "\"\"") return -1;
    const std::string text = std::any_cast<std::string>(Peek().value);
    Consume();
    return builder_.AddByteString(text.substr(0, 1));
  }
  // What may come behind those counted, up to what always does, and behind the groups and
  // alternatives that end here. Empty: it is not known; or it is more than one text and may be a
  // letter that is counted, so that most tokens need a look.
  std::vector<int32_t> Next(int32_t counted) {
    const Token* const here = current_token_;
    std::vector<int32_t> next;
    bool skips = false;
    for (int depth = 0;; Consume()) {
      fox::SpendWork(1);
      const TokenType type = Peek().type;
      const bool is_end = type == TokenType::EndOfFile || type == TokenType::RuleName;
      if (depth == 0 && (type == TokenType::Pipe || type == TokenType::RParen)) {
        skips = type == TokenType::Pipe;
      } else if (skips && !is_end) {
        depth += (type == TokenType::LParen) - (type == TokenType::RParen);
      } else if (type != TokenType::Question) {
        next.push_back(ParseFirst());
        const TokenType behind = Peek().type;
        if (next.back() < 0 || (behind == TokenType::LBrace &&
                                Peek(1).lexeme.find_first_not_of("+-0") == std::string::npos)) {
          next.clear();
        }
        if (next.empty() || (behind != TokenType::Question && behind != TokenType::Star)) break;
      }
    }
    current_token_ = here;
    const bool is_text = next.size() == 1 && builder_.GetGrammarExpr(next[0]).type ==
                                                 GrammarBuilder::GrammarExprType::kByteString;
    for (int32_t letter = 'A'; letter <= 128 && !is_text; ++letter) {
      if ((!std::isalpha(letter) && letter != 128) || !MayBegin(counted, letter)) continue;
      for (const int32_t part : next) {
        if (MayBegin(part, letter)) return {};
      }
    }
    return next;
  }
  int32_t AddNext(int32_t counted) {
    int32_t& next = CountersOf(counted).next;
    if (next >= 0) return next;
    std::vector<int32_t> ways = Next(counted);
    if (ways.size() == 1) return next = ways[0];
    for (int32_t& way : ways) way = builder_.AddSequence({way});
    const int32_t choices = builder_.AddChoices(ways);
    return next = builder_.AddRuleRef(builder_.AddRuleWithHint(cur_rule_name_ + "_next", choices));
  }
  Counters& CountersOf(int32_t characters) {
    std::vector<int32_t> key, parts = Next(characters);
    parts.push_back(characters);
    for (const int32_t part : parts) {
      const auto expr = builder_.GetGrammarExpr(part);
      key.insert(key.end(), {static_cast<int32_t>(expr.type), static_cast<int32_t>(expr.size())});
      key.insert(key.end(), expr.begin(), expr.end());
    }
    return counters_[key];
  }
  int32_t AddRule(const std::string& name, const std::vector<int32_t>& choices,
                  std::vector<int32_t> behind, int32_t counted) {
    const int32_t rule = builder_.AddRuleWithHint(name, builder_.AddChoices(choices));
    behind.push_back(AddNext(counted));
    builder_.UpdateLookaheadAssertion(rule, builder_.AddSequence(behind));
    return rule;
  }
]==])
fox_patch_xgrammar(grammar_parser.cc "  std::vector<int32_t> rest_rule_ids;"
[==[  if (!Next(grammar_expr_id).empty()) {
    std::vector<int32_t>& rests = CountersOf(grammar_expr_id).rests;
    while (static_cast<int64_t>(rests.size()) < upper - lower) {
      std::vector<int32_t> next = {grammar_expr_id};
      if (!rests.empty()) next.push_back(builder_.AddRuleRef(rests.back()));
      rests.push_back(AddRule(cur_rule_name_ + "_rest",
                              {builder_.AddEmptyStr(), builder_.AddSequence(next)}, {},
                              grammar_expr_id));
    }
    elements.push_back(builder_.AddRuleRef(rests[upper - lower - 1]));
    return builder_.AddSequence(elements);
  }
  std::vector<int32_t> rest_rule_ids;]==])
fox_patch_xgrammar(grammar_parser.cc "  // Case 2. upper is unbounded, and lower is large"
[==[  if (builder_.GetGrammarExpr(grammar_expr_id).type ==
          GrammarBuilder::GrammarExprType::kCharacterClass && !Next(grammar_expr_id).empty()) {
    int64_t after = 128;
    while (after >= upper && upper != -1) after /= 2;
    const int64_t counted = upper == -1 ? lower : upper - after;
    Counters& counters = CountersOf(grammar_expr_id);
    if (counters.any < 0) counters.any = LegacyHandleRepetitionRange(grammar_expr_id, 0, -1);
    const auto [one, is_new] = counters.before.try_emplace(after);
    if (is_new) {
      one->second = AddRule(cur_rule_name_ + "_before_" + std::to_string(after),
                            {builder_.AddSequence({grammar_expr_id})}, {counters.any},
                            grammar_expr_id);
    }
    int32_t rest = counters.any;
    if (upper != -1) {
      const int32_t is = HandleRepetitionRange(
          grammar_expr_id, std::max<int64_t>(0, lower - counted), after);
      rest = builder_.AddRuleRef(
          AddRule(cur_rule_name_ + "_rest", {builder_.AddSequence({is})}, {}, grammar_expr_id));
    }
    std::vector<int32_t> ways = {
        builder_.AddSequence({builder_.AddRepeat(one->second, counted, counted), rest})};
    if (lower < counted) {
      ways.push_back(builder_.AddSequence({builder_.AddRepeat(one->second, lower, counted)}));
    }
    return builder_.AddChoices(ways);
  }
  // Case 2. upper is unbounded, and lower is large]==])
fox_patch_xgrammar(grammar_parser.cc "#include <variant>\n" "#include <map>\n#include <variant>\n")
fox_patch_xgrammar(grammar_compiler.cc
"if ((!lookahead_result_pair.second) && is_exact_lookahead) {"
[==[const std::string& name = grammar_->GetRule(init_rule_id).name;
          const size_t before = name.rfind("_before_");
          if (!lookahead_result_pair.second && is_exact_lookahead &&
              (before == name.npos ||
               token.size() <= std::strtoul(name.c_str() + before + 8, nullptr, 10))) {]==])
fox_meter(fsm.cc "  int AddState() {" 16)
fox_meter(fsm.cc "  void AddEdge(int from, int to, int16_t min, int16_t max) {" 8)
fox_meter(fsm.cc "    const auto& edges = result.GetFsm().GetEdges(i);" "16 + 16 * edges.size()")
fox_meter(fsm.cc "for (const auto& [sibling, edges_to_sibling] : siblings) {" 1)
fox_meter(fsm.cc "for (int j = 0; j < static_cast<int>(closures.size()); j++) {" 1)
fox_meter(earley_parser.cc
          "void EarleyParser::Scan(const ParserState& state, const uint8_t ch) {" 1)
fox_meter(earley_parser.cc "for (const auto& [ref_id, parent_state] : parent_states_map) {" 1)
fox_meter(earley_parser.cc "const auto state = std::move(tmp_process_state_queue_.front());" 4)
fox_meter(earley_parser.cc "for (const auto& parent_state_iter : parent_states_map) {" 1)
fox_meter(earley_parser.cc "const auto in_vec = [&](const ParserState& state_) {"
  "(rule_id_to_completable_states_.Back().end() - rule_id_to_completable_states_.Back().begin())")
fox_meter(earley_parser.cc "const auto& ref_rule = grammar_->GetRule(ref_rule_id);"
          "grammar_->allow_empty_rule_ids.size() / 32")
# A state's mask is kept, and those of all states where an answer may be are joined for each token.
fox_meter(grammar_compiler.cc "  tmp_uncertain_indices_.clear();\n" "vocab_size / 16")
fox_meter(grammar_compiler.cc "        is_root_rule\n    );\n    if (max_threads_ > 1) {"
          "4 * cur_adaptive_token_mask_cache.uncertain_indices.size()")
fox_meter(grammar_matcher.cc "auto adaptive_token_mask_it = adaptive_token_mask_cache.find(state);"
          "tokenizer_info_.GetVocabSize() / 64")
fox_meter(grammar_matcher.cc
          "for (const auto& cur_token_idx : adaptive_token_mask.uncertain_indices) {" 1)

# What it makes of schemas and expressions is not always what they say: strings hold control
# characters, patterns what JSON escapes, ranges other integers, classes half characters; names are
# not escaped, and slashes are.
fox_patch_xgrammar(json_schema_converter.cc [==["[^\"\\\\\\r\\n]"]==] [==["[^\"\\\\\\0-\\x1f]"]==])
fox_patch_xgrammar(json_schema_converter.cc [==[key += "\"\\\"" + prop_name + "\\\"\"";]==]
  [==[key += "\"" + JSONStrToPrintableStr(picojson::value(prop_name).serialize()) + "\"";]==])
fox_patch_xgrammar(../3rdparty/picojson/picojson.h [==[MAP('/', "\\/");]==] "/* '/' */")
fox_patch_xgrammar(json_schema_converter.cc "RegexToEBNF(regex_pattern, false)"
                   "RegexToEBNF(fox::PatternInJson(regex_pattern), false)")
fox_patch_xgrammar(json_schema_converter.cc [==[4]\\d|[0-1]?\\d?\\d)";
      std::string ipv4]==] [==[4]\\d|1\\d\\d|[1-9]?\\d)";
      std::string ipv4]==])
fox_patch_xgrammar(json_schema_converter.cc [==[3]):([0-5]\\d|60):["]==] [==[3]):[0-5]\\d:["]==])
# Dates are real ones (29 February 2000 is left out), times have no leap seconds, names of hosts six
# labels of 41 letters at most.
string(CONCAT fox_date
  [==[[1-9]\\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|]==]
  [==[02-(0[1-9]|1\\d|2[0-8]))|[1-9]\\d(0[48]|[2468][048]|[13579][26])-02-29]==])
fox_patch_xgrammar(json_schema_converter.cc [==[\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[1-2]\\d|3[01])]==]
                   "${fox_date}")
fox_patch_xgrammar(json_schema_converter.cc [==[:([0-5]\\d|60)(\\.]==] [==[:[0-5]\\d(\\.]==])
fox_patch_xgrammar(json_schema_converter.cc
  [==[([a-z0-9]([a-z0-9-]*[a-z0-9])?)(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*]==]
  [==[[a-z0-9](-?[a-z0-9]){0,20}(\\.[a-z0-9](-?[a-z0-9]){0,20}){0,5}]==])
fox_patch_xgrammar(json_schema_converter.cc "1{0,1}[0-9])" "1[0-9]|[1-9])")
fox_patch_xgrammar(json_schema_converter.cc "range_regex = GenerateRangeRegex(start, end);"
                   "range_regex = fox::IntegerPattern(start, end);")
fox_patch_xgrammar(structural_tag.cc "Grammar::FromJSONSchema(format.json_schema);"
                   "Grammar::FromJSONSchema(format.json_schema, /*any_whitespace=*/false);")
fox_patch_xgrammar(regex_converter.cc [==[R"([\u0000-\U0010FFFF])"]==] [==[R"([^\n\r])"]==])
fox_patch_xgrammar(regex_converter.cc [==[\u0020\u00a0]==] [==[\u0020 ]==])
fox_patch_xgrammar(grammar_builder.h "    for (const auto& range : elements) {\n"
  "    for (const auto& range : elements) { XGRAMMAR_CHECK(range.upper < 128)
          << \"classes of characters beyond ASCII are not supported\";\n")

# A token that may not come excludes those that begin with it, not those that contain it elsewhere.
fox_patch_xgrammar(tokenizer_info.cc "(token.find(prefix_stack.top().first) == std::string::npos)"
                   "!token.starts_with(prefix_stack.top().first)")

# States with the same texts before them may be merged, or with the same behind, but not by both at
# once.
fox_patch_xgrammar(fsm.cc "if (sibling <= i || next_states[sibling].size() != 1 ||"
  "if (sibling <= i || union_find_set.Count(sibling) || next_states[sibling].size() != 1 ||")
fox_patch_xgrammar(fsm.cc "      if (next_states[i].empty()) {\n"
  "      if (next_states[i].empty()) { if (union_find_set.Count(i)) continue;\n")

# Rules share one automaton, which it counts for each of them.
fox_patch_xgrammar(fsm.cc "MemorySize(self.fsm_) + MemorySize(self.ends_)" "self.ends_.size() / 8")

file(GLOB sources ${source}/cpp/*.cc ${source}/cpp/support/recursion_guard.cc)
add_library(fox_xgrammar STATIC ${sources})
target_include_directories(fox_xgrammar SYSTEM PUBLIC
  ${source}/include ${source}/cpp ${source}/3rdparty/picojson ${source}/3rdparty/dlpack/include)
target_compile_definitions(fox_xgrammar PUBLIC
  XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0 XGRAMMAR_LOG_CUSTOMIZE=1)
target_compile_options(fox_xgrammar
  PRIVATE -w "SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/json_pattern.h"
  PUBLIC "SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/work_meter.h")
set_target_properties(fox_xgrammar PROPERTIES CXX_CLANG_TIDY "" UNITY_BUILD OFF)
