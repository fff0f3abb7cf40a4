// ConvertGrammar: the grammar of an answer, from its fields and tools. See request_conversion.h.
#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "models/checkpoint/json_reader.h"
#include "models/grammar/call_grammar.h"
#include "models/grammar/json_schema.h"
#include "models/grammar/work_meter.h"
#include "server/calls/conversion/request_conversion.h"

namespace fox {
namespace {

constexpr int kMaxTools = 128;

absl::Status Named(const char* field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

// As long as Anthropic's: clients put the name of an MCP server before the tool's own.
constexpr size_t kMaxNameBytes = 128;
bool IsToolName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
         });
}

struct Tool {
  std::string name, schema;
  bool strict = false;  // no keyword of its schema is dropped
};

absl::StatusOr<Tool> ReadTool(const std::string& text) {
  const JsonLimits limits = {text.size(), kMaxSchemaDepth, text.size()};
  const absl::StatusOr<ExactJson> read = ReadExactJson(text, limits, "the tool");
  const ExactJson tool = read.ok() && read->is_object() ? *read : ExactJson::object();
  const ExactJson function = tool.value("function", ExactJson());
  const ExactJson named = function.is_object() ? function.value("name", ExactJson()) : ExactJson();
  if (tool.value("type", ExactJson()) != "function" || !named.is_string()) {
    return absl::InvalidArgumentError(
        R"(function: must be {"type": "function", "function": {"name": .., "parameters": {..}}})");
  }
  Tool out{named.get<std::string>(), "", function.value("strict", ExactJson()) == true};
  if (!IsToolName(out.name)) {
    return absl::InvalidArgumentError("function.name: must be 1 to 128 letters, digits, _ and -");
  }
  ExactJson schema = function.value("parameters", ExactJson());
  if (schema.is_null()) schema = ExactJson::object();
  const ExactJson types =
      schema.is_object() ? schema.value("type", ExactJson("object")) : ExactJson();
  if (types != "object" && std::find(types.begin(), types.end(), "object") == types.end()) {
    return absl::InvalidArgumentError("function.parameters: must be the schema of an object");
  }
  schema["type"] = "object";
  out.schema = TextOf(schema, false);
  return out;
}

// Adds the rules of a schema; the spec gets the keywords that are relaxed.
absl::StatusOr<std::string> AddSchema(const std::string& schema, bool relax,
                                      const std::string& name, EbnfRules* rules,
                                      GenerationSpec* spec) {
  const WorkMeter meter(kSchemaSteps);
  rules->set_place(name.empty() ? "" : absl::StrCat(name, "#"));
  absl::StatusOr<SchemaRules> added = AddSchemaRules(schema, relax, rules);
  rules->set_place("");
  if (!added.ok()) return added.status();
  for (const std::string& place : added->relaxed) {
    spec->relaxed.push_back(absl::StrCat(name, "#", place));
  }
  return added->root;
}

// The grammar of an answer with tools: text with calls in it, calls alone, or either calls or the
// form that the request prescribes.
absl::Status AddTools(const v1::ChatMessages& in, const ToolFormat& format, GenerationSpec* spec) {
  if (in.tools_size() > kMaxTools) {
    return absl::InvalidArgumentError(absl::StrCat("tools: at most ", kMaxTools));
  }
  EbnfRules rules;
  std::vector<CallForm> calls;
  std::set<std::string> names;
  size_t bytes = 0;
  for (const std::string& text : in.tools()) {
    const std::string field = absl::StrCat("tools[", names.size(), "]");
    const absl::StatusOr<Tool> tool = ReadTool(text);
    if (!tool.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".", tool.status().message()));
    }
    bytes += tool->schema.size();  // descriptions of tools can be longer
    if (bytes > kMaxGrammarBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": the schemas of the tools up to here have more than ",
                       kMaxGrammarBytes, " bytes"));
    }
    if (!names.insert(tool->name).second) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".function.name: is there twice"));
    }
    if (in.has_call_name() && in.call_name() != tool->name) continue;
    const absl::StatusOr<std::string> arguments =
        AddSchema(tool->schema, !tool->strict, tool->name, &rules, spec);
    if (!arguments.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".function.parameters: ", arguments.status().message()));
    }
    calls.push_back(
        {absl::StrCat(format.call, tool->name, format.arguments), *arguments, format.call_end});
  }
  if (calls.empty())
    return absl::InvalidArgumentError("tools: there is none to call, or none of that name");
  AnswerForm form{format.trigger, format.separator, "", in.call_required() || in.has_call_name(),
                  in.one_call() || in.has_call_name()};
  if (!form.required && spec->grammar.has_value()) {
    const absl::StatusOr<std::string> beside =
        AddSchema(spec->grammar->text, /*relax=*/false, "", &rules, spec);
    if (!beside.ok()) return Named(spec->grammar_field, beside.status());
    form.beside = *beside;
  }
  spec->grammar_field = "tools";
  spec->grammar = CallGrammar(calls, form, &rules);
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
  } else if (spec->grammar.has_value() && spec->grammar->kind == Kind::kJsonSchema &&
             spec->grammar->text.size() <= kMaxGrammarBytes) {
    EbnfRules rules;
    const absl::StatusOr<std::string> added =
        AddSchema(spec->grammar->text, /*relax=*/false, "", &rules, spec);
    if (!added.ok()) return Named(spec->grammar_field, added.status());
  }
  if (!spec->grammar.has_value()) return absl::OkStatus();
  if (context.grammars == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        spec->grammar_field, ": the model has no tokenizer, or one whose text is escaped"));
  }
  return absl::OkStatus();
}

}  // namespace fox
