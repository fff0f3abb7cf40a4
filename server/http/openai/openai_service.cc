// Routes, and hints for paths that are not here. See openai_service.h.
#include "server/http/openai/openai_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/core/check.h"
#include "server/http/port/http_error.h"

namespace fox {
namespace {

HttpAnswer Json(std::string body) {
  HttpAnswer answer;
  answer.body = std::move(body);
  return answer;
}

// In OpenAI's form and in Anthropic's.
std::string Model(const ServerCore& core, absl::Time created) {
  const std::string name = JsonString(core.context.served_model_name);
  const int64_t longest = core.context.limits.max_model_len;
  return absl::StrCat(
      "{\"id\":", name, ",\"object\":\"model\",\"created\":", absl::ToUnixSeconds(created),
      ",\"owned_by\":\"foxserve\",\"root\":", name, ",\"parent\":null,\"max_model_len\":", longest,
      ",\"chat\":", core.context.chat != nullptr ? "true" : "false",
      ",\"type\":\"model\",\"display_name\":", name, ",\"created_at\":\"",
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", created, absl::UTCTimeZone()),
      "\",\"lifecycle\":\"active\",\"max_input_tokens\":", longest, ",\"max_tokens\":", longest,
      "}");
}

constexpr char kModelPath[] = "/v1/models/";

// Paths of other APIs that clients try first, and the hint that answers them.
constexpr std::pair<const char*, const char*> kNotHere[] = {
    {"/v1/responses/", "no response is stored; send all items to /v1/responses"},
    {"/v1/messages/", "no batches here; use /v1/messages"},
    {"/v1/embeddings", "no embeddings here: the model completes text; see /v1/completions"},
    {"/v1/rerank", "no reranking here: the model completes text; see /v1/completions"},
    {"/api/", "no Ollama API here; use /v1/chat/completions or /v1/completions"},
    {"/props", "no llama.cpp API here; /v1/models has the context's length"},
    {"/completion", "no llama.cpp API here; use /v1/completions"},
    {"/apply-template", "no llama.cpp API here; /tokenize takes messages, too"},
    {"/generate", "no Text Generation Inference here; use /v1/completions"},
    {"/generate_stream", "no Text Generation Inference here; use /v1/completions, stream"},
    {"/ping", "see /health"},
    {"/docs", "no OpenAPI document here: these are OpenAI's paths, below /v1"},
    {"/openapi.json", "no OpenAPI document here: these are OpenAI's paths, below /v1"},
    {"/metrics", "metrics have a port of their own: --metrics-port"},
    {"/v1/v1/", "/v1 stands twice in this path; the base URL ends with one"},
};

void ExplainPaths(HttpRoutes* routes) {
  for (const auto& [path, message] : kNotHere) routes->Explain(path, message, kUnknownUrl);
  for (const char* path : {"/completions", "/chat/completions", "/models"}) {
    routes->Explain(path, "paths begin with /v1; the base URL ends with it", kUnknownUrl);
  }
}

}  // namespace

void StartCall(ServerCore& core, const char* path, Call::Work work, std::unique_ptr<Format> format,
               int64_t bytes, const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request;
  CallInfo info = core.Describe(path, request.peer, CallerHeadersOf(request, core));
  auto call = std::make_shared<Call>(core, std::move(info), work, std::move(format), exchange);
  exchange->AttachCall(call);
  call->Start(bytes);
}

void RegisterApi(ServerCore& core, const HttpApi& api, HttpRoutes* routes) {
  routes->Handle("POST", api.path, [&core, &api](const std::shared_ptr<HttpExchange>& exchange) {
    const auto bytes = static_cast<int64_t>(exchange->request.body.size());
    auto format = std::make_unique<CompletionFormat>(
        api, core.context, core.description.Fingerprint(), &exchange->request, &exchange->head);
    StartCall(core, api.path, Call::Work::kGenerate, std::move(format), bytes, exchange);
  });
}

void RegisterOpenAiRoutes(ServerCore& core, std::function<bool()> serving, HttpRoutes* routes) {
  FOX_CHECK(serving != nullptr);
  using Exchange = std::shared_ptr<HttpExchange>;
  routes->SetCore(&core);
  for (const HttpApi* api : {&kCompletionsApi, &kChatApi}) RegisterApi(core, *api, routes);
  const std::string model = Model(core, absl::Now());
  const std::string id = JsonString(core.context.served_model_name);
  const std::string list =
      absl::StrCat("{\"object\":\"list\",\"data\":[", model,
                   "],\"has_more\":false,\"first_id\":", id, ",\"last_id\":", id, "}");
  routes->AddPage("/v1/models", Json(list), Privilege::kUser);
  // Clients encode the model's name in more than one way: a slash in it is a slash, or %2F.
  routes->Handle("GET", kModelPath, [&core, page = Json(model)](const Exchange& exchange) {
    const std::string name = PercentDecoded(exchange->request.path.substr(sizeof(kModelPath) - 1));
    exchange->Answer(
        name == core.context.served_model_name
            ? page
            : ErrorAnswer(404, "model: not served here; /v1/models lists it", kModelNotFound));
  });
  const std::string version = JsonString(core.description.version);
  routes->AddPage("/version", Json(absl::StrCat("{\"version\":", version, "}")));
  routes->Handle(
      "GET", "/health",
      [&core, serving = std::move(serving)](const Exchange& exchange) {
        if (serving()) return exchange->Answer(Json("{\"status\":\"ok\"}"));
        const char* reason = core.engine.draining() ? "the server is draining" : "not healthy";
        exchange->Answer(ErrorAnswer(absl::UnavailableError(reason)));
      },
      Privilege::kPublic);
  RegisterResponsesRoutes(core, routes);
  RegisterMessagesRoutes(core, routes);
  RegisterTokenizerRoutes(core, routes);
  RegisterCacheRoutes(core, routes);
  ExplainPaths(routes);
}

}  // namespace fox
