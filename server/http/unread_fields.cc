// Fields of a completion's body that the server does not read. See json_fields.h.
#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/http/json_fields.h"

namespace fox {
namespace {

using Json = nlohmann::json;

// Fields of other servers and of OpenAI's other endpoints that change what comes back.
struct Unsupported {
  const char* names;
  const char* advice;
};
constexpr Unsupported kUnsupported[] = {
    {"max_new_tokens max_completion_tokens max_output_tokens max_length n_predict num_predict",
     "did you mean max_tokens?"},
    {"messages", "of /v1/chat/completions; send prompt"},
    {"prompt", "of /v1/completions; send messages"},
    {"echo add_special_tokens", "of /v1/completions alone"},
    {"input inputs input_ids prompt_token_ids", "did you mean prompt or messages?"},
    {"num_return_sequences", "did you mean n?"},
    {"repeat_penalty", "did you mean repetition_penalty?"},
    {"random_seed", "did you mean seed?"},
    {"stop_sequences stop_strings stop_words", "did you mean stop?"},
    {"top_logprobs n_probs", "did you mean logprobs?"},
    {"prompt_logprobs", "not supported; echo and logprobs of /v1/completions bring them"},
    {"guided_json guided_regex guided_choice guided_grammar json_schema json_object regex grammar "
     "choice",
     "send response_format or structured_outputs"},
    {"tools tool_choice", "of /v1/chat/completions"},
    {"functions function_call", "send tools and tool_choice"},
    {"reasoning_content", "send it in content, as the model wrote it"},
    {"audio web_search_options", "text alone is supported"},
    {"chat_template chat_template_kwargs documents", "not supported; the model has its format"},
    {"bad_words bad_words_ids", "not supported; a logit_bias of -100 keeps a token out"},
    {"prompt_embeds", "not supported; a prompt is text or token ids"},
    {"suffix", "not supported"},
    {"use_beam_search", "not supported"},
    {"logits_processors", "not supported"},
    {"typical_p tfs_z mirostat dynatemp_range dry_multiplier xtc_probability", "not supported"},
    {"return_token_ids return_tokens_as_token_ids", "not supported"},
    {"lora_name lora_path adapter_id", "no LoRA"},
};

constexpr size_t kMaxFields = 128;
constexpr size_t kMaxNameBytes = 64;  // longer than any name that is known

// Other names are never told: they may be anything.
bool IsName(const std::string& name) {
  return name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
         });
}

bool AsksForNothing(const std::string& name, const Json& value) {
  const bool chooses = name == "tool_choice" || name == "function_call";
  if (chooses && (value == Json("none") || value == Json("auto"))) return true;
  return value == Json(false) || value == Json("") || (!value.is_primitive() && value.empty()) ||
         value.is_null();
}

const char* AdviceOn(const std::string& name) {
  for (const Unsupported& row : kUnsupported) {
    for (absl::string_view known : absl::StrSplit(row.names, ' ')) {
      if (known == name) return row.advice;
    }
  }
  return nullptr;
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

}  // namespace

absl::Status CheckUnreadFields(const JsonFields& fields) {
  if (fields.object().size() > kMaxFields) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body: must have at most ", kMaxFields, " fields"));
  }
  for (const auto& [name, value] : fields.object().items()) {
    if (fields.asked().count(name) > 0 || !IsName(name) || AsksForNothing(name, value)) continue;
    if (const char* advice = AdviceOn(name)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", advice));
    }
    for (const std::string& known : fields.asked()) {
      if (!IsMisspelled(name, known)) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, ": did you mean ", known, "?"));
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
