// ConvertGrammar: see request_conversion.h.
#include "absl/strings/str_cat.h"
#include "server/calls/request_conversion.h"

namespace fox {

absl::Status ConvertGrammar(const v1::Sampling& in, const ConversionContext& context,
                            GenerationSpec* spec) {
  using Kind = GrammarSource::Kind;
  int count = 0;
  const auto take = [&](bool set, const char* field, GrammarSource source) {
    if (!set) return;
    ++count;
    spec->grammar_field = field;
    spec->grammar = std::move(source);
  };
  take(in.has_json_schema(), "json_schema", {Kind::kJsonSchema, in.json_schema()});
  take(in.has_regex(), "regex", {Kind::kRegex, in.regex()});
  take(in.has_grammar(), "grammar", {Kind::kGrammar, in.grammar()});
  take(in.json_object(), "json_object",
       {Kind::kJsonSchema, R"({"type": "object", "additionalProperties": true})"});
  if (in.choice_size() > 0) {
    take(true, "choice", ChoiceGrammar({in.choice().begin(), in.choice().end()}));
  }
  if (count == 0) return absl::OkStatus();
  const std::string field = absl::StrCat("sampling.", spec->grammar_field, ": ");
  if (count > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, "at most one of json_schema, json_object, regex, grammar and choice"));
  }
  if (context.grammars == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(field, "the model has no tokenizer, or one whose text is escaped"));
  }
  return absl::OkStatus();
}

}  // namespace fox
