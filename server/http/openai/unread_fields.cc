// Fields that the server does not read: which it ignores, and what to send in place of others. See
// json_fields.h.
#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/http/openai/json_fields.h"

namespace fox {
namespace {

// Fields that are ignored whatever their value: names for bookkeeping, hints about speed, notes
// that only a client reads.
struct Ignored {
  FieldPlace place;
  const char* names;
};
constexpr Ignored kIgnored[] = {
    {FieldPlace::kBody,
     "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention "
     "prompt_cache_options moderation prediction cache_prompt keep_alive"},
    {FieldPlace::kMessage,
     "name id annotations parsed provider_specific_fields cache_control tool_call_id "
     "thinking_blocks reasoning_items reasoning_details"},
    {FieldPlace::kPart, "cache_control annotations"},
    {FieldPlace::kSchema, "name description strict"},
    {FieldPlace::kStreamOptions, "include_obfuscation"},
    {FieldPlace::kMessagesBody,
     "metadata service_tier speed inference_geo diagnostics betas cache_control "
     "context_management"},
    {FieldPlace::kMessagesTurn, "id output_config"},
    {FieldPlace::kMessagesBlock, "cache_control citations id tool_use_id is_error caller"},
    {FieldPlace::kMessagesTool,
     "cache_control eager_input_streaming defer_loading input_examples allowed_callers"},
    {FieldPlace::kMessagesOutput, "effort"},
    {FieldPlace::kResponsesBody,
     "store metadata user service_tier safety_identifier prompt_cache_key prompt_cache_retention "
     "prompt_cache_options client_metadata max_tool_calls stream_options moderation"},
    {FieldPlace::kResponsesItem, "id status phase call_id name namespace caller"},
    {FieldPlace::kResponsesPart, "annotations logprobs"},
    {FieldPlace::kResponsesTool, "type defer_loading allowed_callers output_schema"},
    {FieldPlace::kResponsesReasoning, "summary generate_summary context"},
};

// Fields of other servers and of OpenAI's other endpoints. `neutral`: the value, as JSON, that asks
// for the server's default.
struct Unsupported {
  const char* names = "";
  const char* advice = "";
  const char* neutral = "false";
};
constexpr char kNotSupported[] = "not supported; leave it out";
constexpr Unsupported kUnsupported[] = {
    {"max_new_tokens max_completion_tokens max_output_tokens max_length n_predict num_predict",
     "did you mean max_tokens?"},
    {"min_new_tokens min_length", "did you mean min_tokens?", "0"},
    {"messages", "of /v1/chat/completions; send prompt"},
    {"prompt", "of /v1/completions; send messages"},
    {"echo add_special_tokens", "of /v1/completions alone"},
    {"tools tool_choice continue_final_message", "of /v1/chat/completions"},
    {"parallel_tool_calls add_generation_prompt", "of /v1/chat/completions", "true"},
    {"chat_template chat_template_kwargs documents", "not supported; the model has its format"},
    {"input inputs input_ids prompt_token_ids", "did you mean prompt or messages?"},
    {"system system_prompt instructions", "send a message of role system"},
    {"previous_response_id conversation conversation_id thread",
     "nothing is stored; send all messages"},
    {"num_return_sequences", "did you mean n?", "1"},
    {"temp", "did you mean temperature?"},
    {"repeat_penalty", "did you mean repetition_penalty?", "1"},
    {"random_seed", "did you mean seed?"},
    {"stop_sequences stop_strings stop_words stopping_strings until", "did you mean stop?"},
    {"eos_token_id", "send stop_token_ids"},
    {"ban_eos_token", "did you mean ignore_eos?"},
    {"add_bos_token", "did you mean add_special_tokens?", "true"},
    {"truncate truncation_length", "did you mean truncate_prompt_tokens?"},
    {"do_sample", "send a temperature of 0 for the likeliest tokens", "true"},
    {"top_logprobs n_probs", "did you mean logprobs?", "0"},
    {"prompt_logprobs", "not supported; echo and logprobs of /v1/completions bring them"},
    {"guided_json guided_regex guided_choice guided_grammar json_schema json_object regex ebnf "
     "grammar choice format schema",
     "send response_format or structured_outputs"},
    {"functions function_call", "send tools and tool_choice"},
    {"enable_thinking think thinking thinking_budget reasoning include_reasoning",
     "not supported; send reasoning_effort, none or medium", "null"},
    {"reasoning_effort", "of /v1/chat/completions", "null"},
    {"separate_reasoning", "not supported; a thought is apart from the content", "true"},
    {"reasoning_content reasoning_details", "of an assistant's message, as a text"},
    {"prefix", "send continue_final_message"},
    {"audio modalities images web_search_options", "text alone is supported", "[\"text\"]"},
    {"bad_words bad_words_ids", "not supported; a logit_bias of -100 keeps a token out"},
    {"prompt_embeds", "not supported; a prompt is text or token ids"},
    {"num_beams length_penalty typical_p typical tfs_z tfs", kNotSupported, "1"},
    {"mirostat mirostat_mode dynatemp_range dry_multiplier xtc_probability top_a n_keep "
     "no_repeat_ngram_size epsilon_cutoff eta_cutoff smoothing_factor",
     kNotSupported, "0"},
    {"verbosity", kNotSupported, "\"medium\""},
    {"detokenize spaces_between_special_tokens use_cache", kNotSupported, "true"},
    {"suffix use_beam_search early_stopping logits_processors return_token_ids "
     "return_tokens_as_token_ids return_full_text timings_per_token return_progress "
     "raw background async",
     kNotSupported},
    {"lora_name lora_path adapter_id", "no LoRA"},
    {"request_id rid", "send the header X-Request-Id"},
    {"num_ctx n_ctx", "the context is that of --max-model-len"},
    {"options extra_body parameters sampling_params", "its fields belong beside the others"},
    {"content", "did you mean prompt?"},
    {"add_special", "did you mean add_special_tokens?", "true"},
    {"with_pieces", "did you mean return_token_strs?"},
};

constexpr size_t kMaxFields = 128;
constexpr size_t kMaxNameBytes = 64;  // longer than any name that is known

// Other names are never repeated: they may be anything.
bool IsName(const std::string& name) {
  return name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' ||
                  c == '.';
         });
}

bool Has(absl::string_view names, const std::string& name) {
  const auto all = absl::StrSplit(names, ' ');
  return std::find(all.begin(), all.end(), name) != all.end();
}

bool IsIgnored(const std::string& name, FieldPlace place) {
  return std::any_of(std::begin(kIgnored), std::end(kIgnored), [&](const Ignored& row) {
    return row.place == place && Has(row.names, name);
  });
}

const Unsupported* RowOf(const std::string& name) {
  const auto* row = std::find_if(std::begin(kUnsupported), std::end(kUnsupported),
                                 [&](const Unsupported& r) { return Has(r.names, name); });
  return row == std::end(kUnsupported) ? nullptr : row;
}

bool AsksForNothing(const std::string& name, const ExactJson& value, const Unsupported* row) {
  const bool chooses = name == "tool_choice" || name == "function_call";
  if (chooses && (value == ExactJson("none") || value == ExactJson("auto"))) return true;
  const ExactJson neutral = row == nullptr ? ExactJson() : ExactJson::parse(row->neutral);
  if (value == neutral || NumberOf(value) == NumberOf(neutral)) return true;
  return value == ExactJson("") || (value.is_structured() && value.empty()) || value.is_null();
}

// Without what spellings differ in.
std::string Plain(absl::string_view name) {
  std::string out = absl::AsciiStrToLower(name);
  out.erase(std::remove_if(out.begin(), out.end(), [](char c) { return c == '_' || c == '-'; }),
            out.end());
  return out;
}

// Names of three letters and less are never a letter off: nearly everything would be.
bool IsMisspelled(const std::string& name, const std::string& known) {
  const std::string plain = Plain(name), wanted = Plain(known);
  absl::string_view a = plain, b = wanted;
  while (!a.empty() && !b.empty() && a.front() == b.front()) a.remove_prefix(1), b.remove_prefix(1);
  while (!a.empty() && !b.empty() && a.back() == b.back()) a.remove_suffix(1), b.remove_suffix(1);
  return std::max(a.size(), b.size()) <= (std::min(plain.size(), wanted.size()) > 3 ? 1U : 0U);
}

// Advice where a field may have another name than in OpenAI's older APIs, or not be there.
std::string AdviceOfOtherNames(const std::string& name, const Unsupported& row,
                               const JsonFields& fields) {
  const auto asks = [&](absl::string_view known) {
    return fields.asked().count(std::string(known)) > 0;
  };
  if (asks("input") && (name == "messages" || name == "prompt")) return "did you mean input?";
  absl::string_view meant = row.advice;
  if (!absl::ConsumePrefix(&meant, "did you mean ")) return row.advice;
  for (const absl::string_view known : absl::StrSplit(row.names, ' ')) {
    if (asks(known)) return absl::StrCat("did you mean ", known, "?");
  }
  return asks(meant.substr(0, meant.find_first_of(" ?"))) ? row.advice : kNotSupported;
}

std::string AdviceOn(const std::string& name, const Unsupported* row, const JsonFields& fields,
                     FieldPlace place) {
  if (place == FieldPlace::kFormat) return "not of this type; a schema is of json_schema";
  const bool other_names =
      place == FieldPlace::kResponsesBody || place == FieldPlace::kMessagesBody;
  if (row != nullptr) return other_names ? AdviceOfOtherNames(name, *row, fields) : row->advice;
  for (const std::string& known : fields.asked()) {
    if (IsMisspelled(name, known)) return absl::StrCat("did you mean ", known, "?");
  }
  return kNotSupported;
}

}  // namespace

absl::Status CheckUnreadFields(const JsonFields& fields, FieldPlace place) {
  if (fields.object().size() > kMaxFields) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body: must have at most ", kMaxFields, " fields"));
  }
  for (const auto& [name, value] : fields.object().items()) {
    if (fields.asked().count(name) > 0 || IsIgnored(name, place)) continue;
    const Unsupported* const row = RowOf(name);
    if (AsksForNothing(name, value, row)) continue;
    if (!IsName(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the body: a field has an unknown name, of more than ", kMaxNameBytes,
                       " bytes or other than letters, digits, _, - and ."));
    }
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", AdviceOn(name, row, fields, place)));
  }
  return absl::OkStatus();
}

}  // namespace fox
