// The page's files equal the repository's, and load nothing from elsewhere.
#include "server/http/page/page_assets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/engine/eval/run_program.h"

namespace fox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PageAssetsTest, FilesAreThoseOfTheRepository) {
  const std::map<std::string, std::string> sources = {
      {"/", "server/http/page/index.html"},
      {"/style.css", "server/http/page/style.css"},
      {"/app.js", "server/http/page/app.js"},
      {"/view.js", "server/http/page/view.js"},
      {"/recorded.js", "server/http/page/recorded.js"},
      {"/page.png", "server/http/page/page.png"}};
  ASSERT_EQ(PageAssets().size(), sources.size());
  for (const PageAsset& asset : PageAssets()) {
    const std::string source =
        ReadWhole(std::string(FOX_SOURCE_DIR) + "/" + sources.at(asset.path));
    EXPECT_GT(source.size(), 1000u) << asset.path;
    EXPECT_EQ(asset.body, source) << asset.path;
  }
}

// A browser would refuse what breaks the policy, and the page would fail silently.
TEST(PageAssetsTest, NothingIsInlineAndNothingIsElsewhere) {
  std::map<std::string, std::string> headers(PageHeaders().begin(), PageHeaders().end());
  const std::string policy = headers["Content-Security-Policy"];
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(policy, Not(HasSubstr("*")));
  for (const PageAsset& asset : PageAssets()) {
    if (std::string(asset.path) == "/page.png") continue;
    const std::string body(asset.body);
    for (const char* foreign : {"http://", "https://", "//cdn", "style=\"", "onclick", "<script>",
                                "<style", "eval(", "innerHTML", "document.write"}) {
      EXPECT_THAT(body, Not(HasSubstr(foreign))) << asset.path;
    }
  }
}

}  // namespace
}  // namespace fox
