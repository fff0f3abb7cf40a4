// One byte after the other. See json_names.h.
#include "models/grammar/json_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "models/grammar/work_meter.h"

namespace fox {

NameTokens::NameTokens(const std::vector<std::pair<int32_t, std::string>>& vocabulary)
    : sorted(vocabulary) {
  for (const auto& token : sorted) {
    if (std::count(token.second.begin(), token.second.end(), '"') > 1) whole.push_back(token);
  }
}

JsonNames::JsonNames(const NameTokens& tokens, std::vector<std::string> begins)
    : tokens_(tokens),
      begins_(std::move(begins)),
      in_json_(std::find(begins_.begin(), begins_.end(), "") != begins_.end()) {}

JsonNames::Event JsonNames::Step(char c, bool in_object, Place* place) {
  if (place->in_string) {
    if (c == '"' && !place->is_escape) {
      place->in_string = false;
      return std::exchange(place->is_name, false) ? Event::kName : Event::kNone;
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
      place->expects_name = in_object;
      return Event::kNone;
    case '{':
      place->expects_name = true;
      return Event::kObject;
    case '[':
      place->expects_name = false;
      return Event::kArray;
    case '}':
    case ']':
      place->expects_name = false;
      return Event::kEnd;
    default:
      return Event::kNone;
  }
}

void JsonNames::Read(const std::string& bytes) {
  for (const char c : bytes) {
    if (!in_json_) {
      outside_ += c;
      in_json_ = std::any_of(begins_.begin(), begins_.end(), [&](const std::string& begin) {
        return !begin.empty() && absl::EndsWith(outside_, begin);
      });
      if (in_json_) outside_.clear();
      continue;
    }
    switch (Step(c, !open_.empty() && open_.back().is_object, &place_)) {
      case Event::kObject:
        open_.push_back({true, {}});
        break;
      case Event::kArray:
        open_.push_back({false, {}});
        break;
      case Event::kEnd:
        if (!open_.empty()) open_.pop_back();
        in_json_ = !open_.empty();
        break;
      case Event::kName:
        open_.back().names.insert(place_.name);
        break;
      case Event::kNone:
        break;
    }
  }
  size_t most = 0;
  for (const std::string& begin : begins_) most = std::max(most, begin.size());
  if (outside_.size() > most) outside_.erase(0, outside_.size() - most);
}

bool JsonNames::Repeats(const std::string& token) const {
  Place place = place_;
  size_t old = open_.size();                 // of open_, those that are still open
  std::vector<Frame> added = {{false, {}}};  // names of the last of them, then new ones
  for (const char c : token) {
    const bool is_new = added.size() > 1;
    const bool in_object = is_new ? added.back().is_object : old > 0 && open_[old - 1].is_object;
    switch (Step(c, in_object, &place)) {
      case Event::kObject:
        added.push_back({true, {}});
        break;
      case Event::kArray:
        added.push_back({false, {}});
        break;
      case Event::kEnd:
        if (is_new) {
          added.pop_back();
        } else if (--old == 0 || old > open_.size()) {
          return false;
        } else {
          added.front().names.clear();
        }
        break;
      case Event::kName:
        if (!added.back().names.insert(place.name).second ||
            (!is_new && open_[old - 1].names.contains(place.name))) {
          return true;
        }
        break;
      case Event::kNone:
        break;
    }
  }
  return false;
}

void JsonNames::Clear(std::vector<uint32_t>* mask) const {
  if (open_.empty()) return;
  const auto bit = [](int32_t id) { return uint32_t{1} << (id % 32); };
  const auto word = [&](int32_t id) -> uint32_t& { return (*mask)[static_cast<size_t>(id) / 32]; };
  if (place_.is_name) {
    const std::set<std::string>& names = open_.back().names;
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
