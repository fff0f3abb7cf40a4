// FlagSet: command-line flags of our programs: `--name=value`, `--name value`, and for booleans
// `--name` and `--no-name`; `-h` is `--help`. The environment (FOX_NAME) sets flags that the
// command line does not; an empty variable counts as none, as `NAME=${NAME:-}` of a compose file
// makes it. Invariant: a target keeps its default unless a valid value was given.
//
// Why not Abseil's flags (tried: 20220623, Debian 12's, the oldest that we build with): a name is a
// C++ identifier, so `--max-num-seqs` is an unknown flag; a wrong flag ends the process inside the
// library with exit code 1 and without the nearest name, and there is no parser that returns a
// status (ours exit with 78 or 2 and one line); the environment is read as FLAGS_name and only for
// names listed in `--tryfromenv`; a repeated flag keeps its last value, and a list splits at
// commas, which a stop string may hold; there is one flag of a name in a process, but the `--seed`
// of two subcommands differs in meaning and default; ranges and choices need a type each; `--help`
// lists by source file and exits with 1.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace fox {

// Variables, by name.
using Environment = std::map<std::string, std::string>;

// Not thread-safe. Targets must outlive the set; their values at registration are the defaults.
class FlagSet {
 public:
  // Following flags are listed under `title` in Help.
  void Group(const std::string& title);
  void String(const std::string& name, const std::string& value_name, const std::string& help,
              std::string* target);
  void Strings(const std::string& name, const std::string& value_name, const std::string& help,
               std::vector<std::string>* target);  // may be repeated; not from the environment
  // T holds all of [min, max].
  template <typename T>
  void Int(const std::string& name, const std::string& value_name, const std::string& help,
           int64_t min, int64_t max, T* target) {
    AddInt(
        name, value_name, help, min, max,
        [target](int64_t value) { *target = static_cast<T>(value); },
        [target] { return static_cast<int64_t>(*target); });
  }
  // MiB on the command line, bytes behind `target`.
  void Mebibytes(const std::string& name, const std::string& help, int64_t min, int64_t max,
                 int64_t* target);
  void Double(const std::string& name, const std::string& value_name, const std::string& help,
              double min, double max, double* target);
  // Any finite number; stays unset when it is not given.
  void OptionalDouble(const std::string& name, const std::string& value_name,
                      const std::string& help, std::optional<double>* target);
  void Bool(const std::string& name, const std::string& help, bool* target);
  // A Bool that the environment does not set, for an action instead of running.
  void Action(const std::string& name, const std::string& help, bool* target);
  void Choice(const std::string& name, const std::vector<std::string>& choices,
              const std::string& help, std::string* target);
  // A Choice of auto, f64, f32 and bf16. PyTorch's names are accepted, too.
  void DTypeChoice(const std::string& name, const std::string& help, std::string* target);
  // A Choice of the names of `values`. The target's default is one of the values.
  template <typename T>
  void Enum(const std::string& name, const std::vector<std::pair<std::string, T>>& values,
            const std::string& help, T* target) {
    std::vector<std::string> names;
    for (const auto& value : values) names.push_back(value.first);
    AddChoice(
        name, names, help,
        [values, target](const std::string& chosen) {
          for (const auto& [value_name, value] : values) {
            if (value_name == chosen) *target = value;
          }
        },
        [values, target] {
          for (const auto& [value_name, value] : values) {
            if (value == *target) return value_name;
          }
          return std::string();
        });
  }

  // Takes the arguments after the program's name. Returns the first error, and sets all valid flags
  // all the same. InvalidArgument names the flag, and a similar one if it is unknown.
  absl::Status Parse(const std::vector<std::string>& arguments,
                     const Environment& environment = {});

  // Arguments that are no flags, in order; all arguments after `--` count as such.
  const std::vector<std::string>& positional() const { return positional_; }
  // True if the command line or the environment set the flag.
  bool IsSet(const std::string& name) const { return set_.count(name) > 0; }
  // One line for each flag, or each of `names`, grouped, with its default.
  std::string Help(const std::vector<std::string>& names = {}) const;
  // Every flag with its present value.
  std::vector<std::pair<std::string, std::string>> Values() const;
  // The flags that were set to other values than their defaults.
  std::vector<std::pair<std::string, std::string>> Changed() const;
  // One sentence for each ignored variable FOX_...: variables of no flag, and links of Kubernetes,
  // which gives every container FOX_GRPC_PORT=tcp://10.0.0.1:50051 if a Service is called fox-grpc.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  using Assign = std::function<bool(const std::string& value)>;  // false: not a valid value
  using Show = std::function<std::string()>;
  struct Flag {
    std::string group, name, value_name, help, default_text;
    std::string expectation;  // "a whole number in [1, 9]"
    Assign assign;
    Show show;
    bool is_bool = false;
    bool from_environment = true;
  };

  Flag& Add(const std::string& name, const std::string& value_name, const std::string& help,
            const std::string& expectation, Assign assign, Show show);
  void AddInt(const std::string& name, const std::string& value_name, const std::string& help,
              int64_t min, int64_t max, std::function<void(int64_t)> set,
              std::function<int64_t()> get);
  void AddChoice(const std::string& name, const std::vector<std::string>& choices,
                 const std::string& help, std::function<void(const std::string&)> set, Show get);
  const Flag* Find(const std::string& name) const;
  absl::Status AssignTo(const Flag& flag, const std::string& value, const std::string& origin);
  absl::Status AssignFrom(const std::string& variable, const std::string& value);
  absl::Status ParseOne(const std::vector<std::string>& arguments, size_t* next);

  std::string group_ = "Options";
  std::vector<Flag> flags_;
  std::set<std::string> set_;  // names
  std::vector<std::string> positional_, warnings_;
};

// "; did you mean PREFIX...?" for a name that is not among `names`. Suggests names that begin with
// it or end with "-" and it, else the name with the fewest edits; none if these are more than half
// of its letters.
std::string Suggestion(const std::string& name, const std::vector<std::string>& names,
                       const std::string& prefix);

}  // namespace fox
