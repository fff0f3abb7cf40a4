// The page's files: see page_assets.h. embed_page.cmake makes arrays of them.
#include "server/http/page/page_assets.h"

#include <cstddef>

namespace fox::page {

extern const unsigned char kIndexHtml[], kStyleCss[], kAppJs[], kViewJs[], kRecordedJs[],
    kPagePng[];
extern const size_t kIndexHtmlSize, kStyleCssSize, kAppJsSize, kViewJsSize, kRecordedJsSize,
    kPagePngSize;

}  // namespace fox::page

namespace fox {
namespace {

std::string_view View(const unsigned char* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

const std::vector<PageAsset>& PageAssets() {
  static const std::vector<PageAsset> assets = {
      {"/", "text/html; charset=utf-8", View(page::kIndexHtml, page::kIndexHtmlSize)},
      {"/style.css", "text/css; charset=utf-8", View(page::kStyleCss, page::kStyleCssSize)},
      {"/app.js", "text/javascript; charset=utf-8", View(page::kAppJs, page::kAppJsSize)},
      {"/view.js", "text/javascript; charset=utf-8", View(page::kViewJs, page::kViewJsSize)},
      {"/recorded.js", "text/javascript; charset=utf-8",
       View(page::kRecordedJs, page::kRecordedJsSize)},
      {"/page.png", "image/png", View(page::kPagePng, page::kPagePngSize)},
  };
  return assets;
}

const std::vector<std::pair<std::string, std::string>>& PageHeaders() {
  static const std::vector<std::pair<std::string, std::string>> headers = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
       "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cache-Control", "no-cache"},
  };
  return headers;
}

}  // namespace fox
