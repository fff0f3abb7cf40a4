// The name of a model: from its directory. See served_model_name.h.
#include "server/served_model_name.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "models/tokenizer/utf8.h"

namespace fox {

absl::StatusOr<std::string> ServedModelName(std::string name, const std::string& model_dir) {
  if (name.empty()) {
    namespace fs = std::filesystem;
    const fs::path dir = fs::path(model_dir + "/").lexically_normal().parent_path();
    const fs::path snapshots = dir.parent_path();
    const std::string repository = snapshots.parent_path().filename();
    name = dir.filename();
    // Hugging Face's cache names a snapshot by its revision alone.
    if (snapshots.filename() == "snapshots" && absl::StartsWith(repository, "models--")) {
      name = absl::StrReplaceAll(repository.substr(8), {{"--", "/"}});
    }
    if (name.empty() || name == "." || name == "..") {
      std::error_code error;  // a directory that does not exist fails when it is opened
      name = fs::weakly_canonical(model_dir, error).filename();
    }
  }
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (name.empty() || name.size() > 256 || control || !IsValidUtf8(name)) {
    return absl::InvalidArgumentError(
        "--served-model-name: must be 1 to 256 bytes of UTF-8 without control characters");
  }
  return name;
}

}  // namespace fox
