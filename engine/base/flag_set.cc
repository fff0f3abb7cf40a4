// FlagSet: registration, then parsing, then printing.
#include "engine/base/flag_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr char kPrefix[] = "FOX_";
constexpr size_t kMaxSuggestions = 3;  // among more, none is likely to be the right one

// False unless all of `text` is a number, and a finite one.
template <typename T>
bool ParseNumber(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && std::isfinite(static_cast<double>(*value));
}

bool ParseBool(const std::string& text, bool* value) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") {
    *value = true;
  } else if (text == "false" || text == "0" || text == "no" || text == "off") {
    *value = false;
  } else {
    return false;
  }
  return true;
}

std::string EnvironmentName(const std::string& flag) {
  return absl::StrCat(kPrefix, absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}})));
}

bool IsKubernetesLink(const std::string& value) {
  return absl::StartsWith(value, "tcp://") || absl::StartsWith(value, "udp://") ||
         absl::StartsWith(value, "sctp://");
}

// True for the other variables that Kubernetes sets for a Service called fox-...:
// FOX_GRPC_SERVICE_HOST, FOX_GRPC_SERVICE_PORT_HTTP, FOX_GRPC_PORT_50051_TCP_ADDR.
bool IsKubernetesVariable(const std::string& name) {
  if (absl::EndsWith(name, "_SERVICE_HOST") || absl::StrContains(name, "_SERVICE_PORT"))
    return true;
  const size_t port = name.find("_PORT_");
  return port != std::string::npos && port + 6 < name.size() &&
         absl::ascii_isdigit(static_cast<unsigned char>(name[port + 6]));
}

// Levenshtein distance in bytes.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

void FlagSet::Group(const std::string& title) { group_ = title; }

FlagSet::Flag& FlagSet::Add(const std::string& name, const std::string& value_name,
                            const std::string& help, const std::string& expectation, Assign assign,
                            Show show) {
  FOX_CHECK(Find(name) == nullptr);
  flags_.push_back(
      {group_, name, value_name, help, show(), expectation, std::move(assign), std::move(show)});
  return flags_.back();
}

void FlagSet::String(const std::string& name, const std::string& value_name,
                     const std::string& help, std::string* target) {
  const auto assign = [target](const std::string& value) {
    *target = value;
    return true;
  };
  Add(name, value_name, help, "", assign, [target] { return *target; });
}

void FlagSet::Strings(const std::string& name, const std::string& value_name,
                      const std::string& help, std::vector<std::string>* target) {
  const auto assign = [target](const std::string& value) {
    target->push_back(value);
    return true;
  };
  Add(name, value_name, help + " (repeatable)", "", assign, [target] {
    return absl::StrJoin(*target, ",");
  }).from_environment = false;
}

void FlagSet::AddInt(const std::string& name, const std::string& value_name,
                     const std::string& help, int64_t min, int64_t max,
                     std::function<void(int64_t)> set, std::function<int64_t()> get) {
  const auto assign = [set = std::move(set), min, max](const std::string& text) {
    int64_t value = 0;
    if (!ParseNumber(text, &value) || value < min || value > max) return false;
    set(value);
    return true;
  };
  Add(name, value_name, help, absl::StrCat("a whole number in [", min, ", ", max, "]"), assign,
      [get = std::move(get)] { return absl::StrCat(get()); });
}

void FlagSet::Mebibytes(const std::string& name, const std::string& help, int64_t min, int64_t max,
                        int64_t* target) {
  AddInt(
      name, "N", help, min, max, [target](int64_t value) { *target = value << 20; },
      [target] { return *target >> 20; });
}

void FlagSet::Double(const std::string& name, const std::string& value_name,
                     const std::string& help, double min, double max, double* target) {
  const auto assign = [target, min, max](const std::string& text) {
    double value = 0;
    if (!ParseNumber(text, &value) || value < min || value > max) return false;
    *target = value;
    return true;
  };
  Add(name, value_name, help, absl::StrCat("a number in [", min, ", ", max, "]"), assign,
      [target] { return absl::StrCat(*target); });
}

void FlagSet::OptionalDouble(const std::string& name, const std::string& value_name,
                             const std::string& help, std::optional<double>* target) {
  const auto assign = [target](const std::string& text) {
    double value = 0;
    if (!ParseNumber(text, &value)) return false;
    *target = value;
    return true;
  };
  Add(name, value_name, help, "a finite number", assign,
      [target] { return *target ? absl::StrCat(**target) : std::string(); });
}

void FlagSet::Bool(const std::string& name, const std::string& help, bool* target) {
  Add(
      name, "", help, "true or false",
      [target](const std::string& text) { return ParseBool(text, target); },
      [target] { return std::string(*target ? "true" : "false"); })
      .is_bool = true;
}

void FlagSet::Action(const std::string& name, const std::string& help, bool* target) {
  Bool(name, help, target);
  flags_.back().from_environment = false;
}

void FlagSet::AddChoice(const std::string& name, const std::vector<std::string>& choices,
                        const std::string& help, std::function<void(const std::string&)> set,
                        Show get) {
  const auto assign = [set = std::move(set), choices](const std::string& value) {
    if (std::find(choices.begin(), choices.end(), value) == choices.end()) return false;
    set(value);
    return true;
  };
  Add(name, absl::StrJoin(choices, "|"), help,
      absl::StrCat("one of ", absl::StrJoin(choices, ", ")), assign, std::move(get));
}

void FlagSet::Choice(const std::string& name, const std::vector<std::string>& choices,
                     const std::string& help, std::string* target) {
  AddChoice(
      name, choices, help, [target](const std::string& value) { *target = value; },
      [target] { return *target; });
}

void FlagSet::DTypeChoice(const std::string& name, const std::string& help, std::string* target) {
  Choice(name, {"auto", "f64", "f32", "bf16"}, help, target);
  Flag& flag = flags_.back();
  flag.expectation += " (also float64, float32, bfloat16); of 16 bits, bf16 alone is supported";
  flag.assign = [assign = flag.assign](const std::string& value) {
    return assign(absl::StrReplaceAll(value, {{"bfloat", "bf"}, {"float", "f"}}));
  };
}

const FlagSet::Flag* FlagSet::Find(const std::string& name) const {
  const auto found = std::find_if(flags_.begin(), flags_.end(),
                                  [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.end() ? nullptr : &*found;
}

absl::Status FlagSet::AssignTo(const Flag& flag, const std::string& value,
                               const std::string& origin) {
  if (!flag.assign(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": \"", value.substr(0, 64), "\" is not ", flag.expectation));
  }
  set_.insert(flag.name);
  return absl::OkStatus();
}

absl::Status FlagSet::AssignFrom(const std::string& variable, const std::string& value) {
  std::vector<std::string> known;
  for (const Flag& flag : flags_) {
    known.push_back(EnvironmentName(flag.name).substr(sizeof(kPrefix) - 1));
    if (kPrefix + known.back() != variable) continue;
    if (!flag.from_environment) return absl::OkStatus();  // FOX_VERSION, of an image
    if (IsKubernetesLink(value)) {
      warnings_.push_back(absl::StrCat(variable, " is ignored: \"", value.substr(0, 6),
                                       "...\" is the link of a Kubernetes Service, not a setting"));
      return absl::OkStatus();
    }
    return value.empty() || IsSet(flag.name) ? absl::OkStatus() : AssignTo(flag, value, variable);
  }
  if (!IsKubernetesLink(value) && !IsKubernetesVariable(variable)) {
    warnings_.push_back(absl::StrCat(
        variable.substr(0, 64), " is ignored: no flag has this name",
        Suggestion(absl::AsciiStrToUpper(variable.substr(sizeof(kPrefix) - 1)), known, kPrefix)));
  }
  return absl::OkStatus();
}

absl::Status FlagSet::Parse(const std::vector<std::string>& arguments,
                            const Environment& environment) {
  absl::Status status;
  size_t next = 0;
  while (next < arguments.size()) {
    if (arguments[next] == "--") {
      positional_.insert(positional_.end(), arguments.begin() + static_cast<ptrdiff_t>(next) + 1,
                         arguments.end());
      break;
    }
    status.Update(ParseOne(arguments, &next));
  }
  for (const auto& [variable, value] : environment) {
    if (absl::StartsWith(variable, kPrefix)) status.Update(AssignFrom(variable, value));
  }
  return status;
}

absl::Status FlagSet::ParseOne(const std::vector<std::string>& arguments, size_t* next) {
  const std::string& given = arguments[(*next)++];
  const std::string argument = given == "-h" && Find("help") != nullptr ? "--help" : given;
  if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) {
    if (argument.size() > 1 && argument[0] == '-') {  // "-" alone is a file name: standard input
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", argument.substr(0, 64)));
    }
    positional_.push_back(argument);
    return absl::OkStatus();
  }
  const size_t equals = argument.find('=');
  const bool has_value = equals != std::string::npos;
  const std::string name = argument.substr(2, has_value ? equals - 2 : std::string::npos);
  const Flag* flag = Find(name);
  if (flag == nullptr && !has_value && name.compare(0, 3, "no-") == 0) {
    const Flag* negated = Find(name.substr(3));
    if (negated != nullptr && negated->is_bool) return AssignTo(*negated, "false", "--" + name);
  }
  if (flag == nullptr) {
    std::vector<std::string> names;
    for (const Flag& known : flags_) names.push_back(known.name);
    return absl::InvalidArgumentError(
        absl::StrCat("unknown flag --", name.substr(0, 64), Suggestion(name, names, "--")));
  }
  if (has_value) return AssignTo(*flag, argument.substr(equals + 1), "--" + name);
  if (flag->is_bool) return AssignTo(*flag, "true", "--" + name);
  if (*next == arguments.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
  }
  return AssignTo(*flag, arguments[(*next)++], "--" + name);
}

std::string FlagSet::Help(const std::vector<std::string>& names) const {
  std::string out, group;
  for (const Flag& flag : flags_) {
    const bool named = std::find(names.begin(), names.end(), flag.name) != names.end();
    if (!names.empty() && !named) continue;
    if (flag.group != group) {
      absl::StrAppend(&out, group.empty() ? "" : "\n", flag.group, ":\n");
      group = flag.group;
    }
    std::string left = absl::StrCat("  --", flag.name);
    if (!flag.is_bool) absl::StrAppend(&left, " ", flag.value_name);
    left.resize(std::max<size_t>(left.size() + 2, 34), ' ');
    absl::StrAppend(&out, left, flag.help);
    if (!flag.default_text.empty() && !(flag.is_bool && flag.default_text == "false")) {
      absl::StrAppend(&out, " [", flag.default_text, "]");
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> FlagSet::Values() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Flag& flag : flags_) out.emplace_back(flag.name, flag.show());
  return out;
}

std::vector<std::pair<std::string, std::string>> FlagSet::Changed() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Flag& flag : flags_) {
    std::string value = flag.show();
    if (IsSet(flag.name) && value != flag.default_text)
      out.emplace_back(flag.name, std::move(value));
  }
  return out;
}

std::string Suggestion(const std::string& name, const std::vector<std::string>& names,
                       const std::string& prefix) {
  std::vector<std::string> near;
  std::string nearest;
  size_t best = std::max<size_t>(2, name.size() / 2) + 1;
  for (const std::string& other : names) {
    if (absl::StartsWith(other, name) || absl::EndsWith(other, "-" + name)) {
      near.push_back(prefix + other);
    }
    const size_t distance = EditDistance(name, other);
    if (distance < best) best = distance, nearest = prefix + other;
  }
  if (near.size() > kMaxSuggestions) near.clear();
  if (near.empty() && !nearest.empty()) near.push_back(nearest);
  return near.empty() ? "" : absl::StrCat("; did you mean ", absl::StrJoin(near, " or "), "?");
}

}  // namespace fox
