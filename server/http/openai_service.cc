// OpenAiService: see openai_service.h.
#include "server/http/openai_service.h"

#include <ctime>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/completion_call.h"
#include "server/http/http_error.h"
#include "server/http/tokenizer_routes.h"

namespace fox {
namespace {

HttpAnswer Json(std::string body) {
  HttpAnswer answer;
  answer.body = std::move(body);
  return answer;
}

std::string Model(const ServerCore& core, int64_t created) {
  const std::string name = JsonString(core.context.served_model_name);
  return absl::StrCat("{\"id\":", name, ",\"object\":\"model\",\"created\":", created,
                      ",\"owned_by\":\"foxserve\",\"root\":", name,
                      ",\"parent\":null,\"max_model_len\":", core.context.limits.max_model_len,
                      "}");
}

}  // namespace

OpenAiService::OpenAiService(ServerCore& core, std::function<bool()> serving)
    : core_(core), serving_(std::move(serving)), created_(std::time(nullptr)) {}

void OpenAiService::Register(HttpServer* server) {
  using Exchange = std::shared_ptr<HttpExchange>;
  server->Handle("POST", "/v1/completions",
                 [this](const Exchange& exchange) { CompletionCall::Start(core_, exchange); });
  const std::string model = Model(core_, created_);
  server->AddPage("/v1/models", Json(absl::StrCat("{\"object\":\"list\",\"data\":[", model, "]}")));
  server->AddPage("/v1/models/" + core_.context.served_model_name, Json(model));
  server->AddPage("/version",
                  Json(absl::StrCat("{\"version\":", JsonString(core_.description.version), "}")));
  server->Handle("GET", "/health", [this](const Exchange& exchange) {
    if (serving_()) return exchange->Answer(Json("{\"status\":\"ok\"}"));
    const char* reason = core_.engine.draining() ? "the server is draining" : "not healthy";
    exchange->Answer(ErrorAnswer(absl::UnavailableError(reason)));
  });
  RegisterTokenizerRoutes(core_, server);
}

}  // namespace fox
