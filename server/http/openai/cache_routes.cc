// Cache routes: what the prefix cache holds, and its removal, for administrators. See
// openai_service.h.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/store/digest.h"
#include "server/http/openai/openai_service.h"
#include "server/http/port/http_error.h"
#include "server/process/log.h"

namespace fox {
namespace {

constexpr char kCachePath[] = "/v1/cache";
constexpr char kBelowCache[] = "/v1/cache/";
constexpr size_t kMaxNamespaces = 1000;  // in one answer

bool IsNamespace(absl::string_view name) {
  return name.size() == kNamespaceDigits && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// The totals, and the namespaces in files behind the name `after`.
HttpAnswer ListCache(const ServerCore& core, const std::string& after) {
  const EngineStats stats = core.engine.stats();
  const SnapshotStore* store = core.engine.prefix_store();
  std::vector<StoredNamespace> found;
  std::string disk = "null";
  if (store != nullptr) {
    found = store->List(after, kMaxNamespaces + 1);
    const StoreStats stored = store->stats();
    disk = absl::StrCat("{\"files\":", stored.files, ",\"bytes\":", stored.bytes, "}");
  }
  const bool has_more = found.size() > kMaxNamespaces;
  if (has_more) found.pop_back();
  const auto entry = [](std::string* out, const StoredNamespace& of) {
    absl::StrAppend(out, "{\"namespace\":\"", of.name, "\",\"files\":", of.files,
                    ",\"bytes\":", of.bytes, "}");
  };
  HttpAnswer answer;
  answer.body =
      absl::StrCat("{\"object\":\"list\",\"data\":[", absl::StrJoin(found, ",", entry),
                   "],\"has_more\":", has_more ? "true" : "false", ",\"disk\":", disk,
                   ",\"memory\":{\"snapshots\":", stats.snapshots,
                   ",\"bytes\":", stats.snapshot_pages * core.context.limits.page_bytes, "}}");
  return answer;
}

HttpAnswer AnswerList(const ServerCore& core, absl::string_view query) {
  constexpr absl::string_view kAfter = "after=";
  if (query.empty()) return ListCache(core, "");
  if (!absl::StartsWith(query, kAfter) || !IsNamespace(query.substr(kAfter.size()))) {
    return ErrorAnswer(400, "query: only after=NAMESPACE, the last one of the answer before");
  }
  return ListCache(core, std::string(query.substr(kAfter.size())));
}

// `only`: a namespace, "": all.
HttpAnswer RemoveFromCache(ServerCore& core, const std::string& only) {
  if (!only.empty() && !IsNamespace(only)) {
    return ErrorAnswer(400, "the namespace: 16 hexadecimal digits, as in the answer to GET");
  }
  const absl::Status status = core.engine.FlushPrefixCache(only);
  if (!status.ok()) return ErrorAnswer(status);
  Log(LogLevel::kInfo, "flushing the prefix cache, asked by an operator", {{"namespace", only}});
  HttpAnswer answer;
  answer.body =
      absl::StrCat("{\"object\":\"cache\",\"namespace\":", only.empty() ? "null" : JsonString(only),
                   ",\"deleted\":true}");
  return answer;
}

}  // namespace

void RegisterCacheRoutes(ServerCore& core, HttpRoutes* routes) {
  if (!routes->admits_administrators()) {
    for (const char* path : {kCachePath, kBelowCache}) {
      routes->Explain(path, "for administrators, who have no tokens here: --admin-key-file",
                      kUnknownUrl);
    }
    return;
  }
  const auto list = [&core](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Answer(AnswerList(core, exchange->request.query));
  };
  const auto remove_all = [&core](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Answer(RemoveFromCache(core, ""));
  };
  const auto remove_one = [&core](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Answer(RemoveFromCache(core, exchange->request.path.substr(sizeof(kBelowCache) - 1)));
  };
  routes->Handle("GET", kCachePath, list, Privilege::kAdmin);
  routes->Handle("DELETE", kCachePath, remove_all, Privilege::kAdmin);
  routes->Handle("DELETE", kBelowCache, remove_one, Privilege::kAdmin);
}

}  // namespace fox
