// An automaton over the bytes of JSON, and the stack of its open objects. See json_names.h.
#include "models/grammar/json_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "kernels/core/check.h"
#include "models/grammar/work_meter.h"

namespace fox {

NameTokens::NameTokens(const std::vector<std::pair<int32_t, std::string>>& vocabulary)
    : sorted(vocabulary) {
  FOX_CHECK(std::is_sorted(sorted.begin(), sorted.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; }));
  for (const auto& token : sorted) {
    if (std::count(token.second.begin(), token.second.end(), '"') > 1) whole.push_back(token);
  }
}

JsonNames::JsonNames(const NameTokens& tokens, std::vector<std::string> begins)
    : tokens_(tokens),
      begins_(std::move(begins)),
      in_json_(std::find(begins_.begin(), begins_.end(), "") != begins_.end()) {}

bool JsonNames::Stack::in_object() const {
  if (frames.size() > 1) return frames.back().is_object;
  return shared > 0 && (*base)[shared].is_object;
}

void JsonNames::Stack::Pop() {
  FOX_CHECK(size() > 0);
  if (frames.size() > 1) return frames.pop_back();
  --shared;
  frames.front().names.clear();
}

bool JsonNames::Stack::AddName(const std::string& name) {
  FOX_CHECK(!frames.empty() && (shared == 0 || shared < base->size()));
  const bool is_shared = frames.size() == 1 && shared > 0 && (*base)[shared].names.contains(name);
  return !is_shared && frames.back().names.insert(name).second;
}

JsonNames::Event JsonNames::Step(char c, Place* place, Stack* open) {
  if (place->in_string) {
    if (c == '"' && !place->is_escape) {
      place->in_string = false;
      const bool is_name = std::exchange(place->is_name, false);
      return is_name && !open->AddName(place->name) ? Event::kRepeatedName : Event::kNone;
    }
    if (place->is_name) place->name += c;
    place->is_escape = c == '\\' && !place->is_escape;
    return Event::kNone;
  }
  switch (c) {
    case '"':
      place->in_string = true;
      place->is_name = std::exchange(place->expects_name, false);
      place->name.clear();
      return Event::kNone;
    case ',':
      place->expects_name = open->in_object();
      return Event::kNone;
    case '{':
    case '[':
      place->expects_name = c == '{';
      open->frames.push_back({c == '{', {}});
      return Event::kNone;
    case '}':
    case ']':
      place->expects_name = false;
      if (open->size() > 0) open->Pop();
      return open->size() > 0 ? Event::kNone : Event::kEnd;
    default:
      return Event::kNone;
  }
}

void JsonNames::Read(const std::string& bytes) {
  for (const char c : bytes) {
    if (in_json_) {
      in_json_ = Step(c, &place_, &open_) != Event::kEnd;
      continue;
    }
    outside_ += c;
    in_json_ = std::any_of(begins_.begin(), begins_.end(), [&](const std::string& begin) {
      return !begin.empty() && absl::EndsWith(outside_, begin);
    });
    if (in_json_) outside_.clear();
  }
  size_t most = 0;
  for (const std::string& begin : begins_) most = std::max(most, begin.size());
  if (outside_.size() > most) outside_.erase(0, outside_.size() - most);
}

bool JsonNames::Repeats(const std::string& token) const {
  Place place = place_;
  Stack draft{&open_.frames, open_.size()};
  for (const char c : token) {
    const Event event = Step(c, &place, &draft);
    if (event != Event::kNone) return event == Event::kRepeatedName;
  }
  return false;
}

void JsonNames::Clear(std::vector<uint32_t>* mask) const {
  FOX_CHECK(32 * mask->size() >= tokens_.sorted.size());
  if (open_.size() == 0) return;
  const auto bit = [](int32_t id) { return uint32_t{1} << (id % 32); };
  const auto word = [&](int32_t id) -> uint32_t& { return (*mask)[static_cast<size_t>(id) / 32]; };
  if (place_.is_name) {
    const std::set<std::string>& names = open_.frames.back().names;
    for (auto name = names.lower_bound(place_.name);
         name != names.end() && absl::StartsWith(*name, place_.name); ++name) {
      const std::string rest = name->substr(place_.name.size()) + '"';
      auto token = std::lower_bound(
          tokens_.sorted.begin(), tokens_.sorted.end(), rest,
          [](const auto& one, const std::string& text) { return one.second < text; });
      for (; token != tokens_.sorted.end() && absl::StartsWith(token->second, rest); ++token) {
        word(token->first) &= ~bit(token->first);
        SpendWork(1);
      }
      SpendWork(1);
    }
  }
  for (const auto& [id, text] : tokens_.whole) {
    if ((word(id) & bit(id)) != 0 && Repeats(text)) word(id) &= ~bit(id);
  }
  SpendWork(static_cast<int64_t>(tokens_.whole.size()) / 8);
}

}  // namespace fox
