// FlagSet: see flag_set.h. Registration first, then parsing, then printing.
#include "engine/flags/flag_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr size_t kMaxSuggestions = 3;  // of more, none is likely to be meant

bool ParseInt(const std::string& text, int64_t* value) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

bool ParseDouble(const std::string& text, double* value) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && std::isfinite(*value);
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
  std::string name = "FOX_";
  for (char c : flag) {
    name.push_back(c == '-' ? '_' : (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c);
  }
  return name;
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

void FlagSet::Add(Flag flag) {
  FOX_CHECK(Find(flag.name) == nullptr);
  flag.group = group_;
  flag.default_text = flag.show();
  flags_.push_back(std::move(flag));
}

void FlagSet::String(const std::string& name, const std::string& value_name,
                     const std::string& help, std::string* target) {
  Flag flag;
  flag.name = name, flag.value_name = value_name, flag.help = help;
  flag.assign = [target](const std::string& value) {
    *target = value;
    return true;
  };
  flag.show = [target] { return *target; };
  Add(std::move(flag));
}

void FlagSet::Strings(const std::string& name, const std::string& value_name,
                      const std::string& help, std::vector<std::string>* target) {
  Flag flag;
  flag.name = name, flag.value_name = value_name, flag.help = help + " (repeatable)";
  flag.from_environment = false;
  flag.assign = [target](const std::string& value) {
    target->push_back(value);
    return true;
  };
  flag.show = [target] { return absl::StrJoin(*target, ","); };
  Add(std::move(flag));
}

void FlagSet::AddInt(const std::string& name, const std::string& value_name,
                     const std::string& help, int64_t min, int64_t max,
                     std::function<void(int64_t)> set, std::function<int64_t()> get) {
  Flag flag;
  flag.name = name, flag.value_name = value_name, flag.help = help;
  flag.expectation = absl::StrCat("a whole number in [", min, ", ", max, "]");
  flag.assign = [set = std::move(set), min, max](const std::string& text) {
    int64_t value = 0;
    if (!ParseInt(text, &value) || value < min || value > max) return false;
    set(value);
    return true;
  };
  flag.show = [get = std::move(get)] { return absl::StrCat(get()); };
  Add(std::move(flag));
}

void FlagSet::Mebibytes(const std::string& name, const std::string& help, int64_t min, int64_t max,
                        int64_t* target) {
  AddInt(
      name, "N", help, min, max, [target](int64_t value) { *target = value << 20; },
      [target] { return *target >> 20; });
}

void FlagSet::Double(const std::string& name, const std::string& value_name,
                     const std::string& help, double min, double max, double* target) {
  Flag flag;
  flag.name = name, flag.value_name = value_name, flag.help = help;
  flag.expectation = absl::StrCat("a number in [", min, ", ", max, "]");
  flag.assign = [target, min, max](const std::string& text) {
    double value = 0;
    if (!ParseDouble(text, &value) || !(value >= min && value <= max)) return false;
    *target = value;
    return true;
  };
  flag.show = [target] { return absl::StrCat(*target); };
  Add(std::move(flag));
}

void FlagSet::OptionalDouble(const std::string& name, const std::string& value_name,
                             const std::string& help, std::optional<double>* target) {
  Flag flag;
  flag.name = name, flag.value_name = value_name, flag.help = help;
  flag.expectation = "a finite number";
  flag.assign = [target](const std::string& text) {
    double value = 0;
    if (!ParseDouble(text, &value)) return false;
    *target = value;
    return true;
  };
  flag.show = [target] { return *target ? absl::StrCat(**target) : std::string(); };
  Add(std::move(flag));
}

void FlagSet::Bool(const std::string& name, const std::string& help, bool* target) {
  Flag flag;
  flag.name = name, flag.help = help, flag.is_bool = true;
  flag.expectation = "true or false";
  flag.assign = [target](const std::string& text) { return ParseBool(text, target); };
  flag.show = [target] { return std::string(*target ? "true" : "false"); };
  Add(std::move(flag));
}

void FlagSet::Action(const std::string& name, const std::string& help, bool* target) {
  Bool(name, help, target);
  flags_.back().from_environment = false;
}

void FlagSet::AddChoice(const std::string& name, const std::vector<std::string>& choices,
                        const std::string& help, std::function<void(const std::string&)> set,
                        std::function<std::string()> get) {
  Flag flag;
  flag.name = name, flag.value_name = absl::StrJoin(choices, "|"), flag.help = help;
  flag.expectation = absl::StrCat("one of ", absl::StrJoin(choices, ", "));
  flag.assign = [set = std::move(set), choices](const std::string& value) {
    if (std::find(choices.begin(), choices.end(), value) == choices.end()) return false;
    set(value);
    return true;
  };
  flag.show = std::move(get);
  Add(std::move(flag));
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
    const std::pair<const char*, const char*> aliases[] = {
        {"float64", "f64"}, {"float32", "f32"}, {"bfloat16", "bf16"}};
    for (const auto& [alias, choice] : aliases) {
      if (value == alias) return assign(choice);
    }
    return assign(value);
  };
}

FlagSet::Flag* FlagSet::Find(const std::string& name) {
  for (Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

bool FlagSet::IsSet(const std::string& name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return flag.set;
  }
  return false;
}

absl::Status FlagSet::Assign(Flag& flag, const std::string& value, const std::string& origin) {
  if (!flag.assign(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": \"", value.substr(0, 64), "\" is not ", flag.expectation));
  }
  flag.set = true;
  return absl::OkStatus();
}

absl::Status FlagSet::AssignFrom(const EnvironmentLookup& lookup, Flag& flag) {
  const std::string variable = EnvironmentName(flag.name);
  const char* value = lookup(variable);
  if (value == nullptr) return absl::OkStatus();
  for (const char* scheme : {"tcp://", "udp://", "sctp://"}) {
    if (!absl::StartsWith(value, scheme)) continue;
    warnings_.push_back(absl::StrCat(variable, " is ignored: \"", scheme,
                                     "\" is the link of a Kubernetes Service, not a setting"));
    return absl::OkStatus();
  }
  return Assign(flag, value, variable);
}

absl::Status FlagSet::Parse(const std::vector<std::string>& arguments,
                            const EnvironmentLookup& lookup) {
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
  for (Flag& flag : flags_) {
    if (flag.set || !flag.from_environment || lookup == nullptr) continue;
    status.Update(AssignFrom(lookup, flag));
  }
  return status;
}

absl::Status FlagSet::ParseOne(const std::vector<std::string>& arguments, size_t* next) {
  const std::string& argument = arguments[(*next)++];
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
  Flag* flag = Find(name);
  if (flag == nullptr && !has_value && name.compare(0, 3, "no-") == 0) {
    Flag* negated = Find(name.substr(3));
    if (negated != nullptr && negated->is_bool) return Assign(*negated, "false", "--" + name);
  }
  if (flag == nullptr) {
    std::vector<std::string> names;
    for (const Flag& known : flags_) names.push_back(known.name);
    return absl::InvalidArgumentError(
        absl::StrCat("unknown flag --", name.substr(0, 64), Suggestion(name, names, "--")));
  }
  if (has_value) return Assign(*flag, argument.substr(equals + 1), "--" + name);
  if (flag->is_bool) return Assign(*flag, "true", "--" + name);
  if (*next == arguments.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
  }
  return Assign(*flag, arguments[(*next)++], "--" + name);
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
    if (flag.set && value != flag.default_text) out.emplace_back(flag.name, std::move(value));
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
