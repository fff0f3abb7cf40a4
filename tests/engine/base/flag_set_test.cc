// FlagSet: forms, environment, errors and help.
#include "engine/base/flag_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace fox {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using Pairs = std::vector<std::pair<std::string, std::string>>;

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() {
    set_.Group("First");
    set_.String("model", "DIR", "the model", &model_);
    set_.Int("grpc-port", "PORT", "the port", 0, 65535, &port_);
    set_.Group("Second");
    set_.Double("timeout", "SECONDS", "how long", 0, 10, &timeout_);
    set_.OptionalDouble("tolerance", "X", "how much", &tolerance_);
    set_.Bool("verbose", "talk", &verbose_);
    set_.Choice("acp", {"off", "paper"}, "pruning", &acp_);
    set_.Action("version", "say it", &version_);
    set_.Strings("stop", "TEXT", "the end", &stop_);
  }
  absl::Status Parse(const std::vector<std::string>& arguments) {
    return set_.Parse(arguments, environment_);
  }
  std::string ErrorOf(const std::vector<std::string>& arguments) {
    return std::string(Parse(arguments).message());
  }

  std::string model_ = "none", acp_ = "off";
  int64_t port_ = 50051;
  double timeout_ = 1;
  std::optional<double> tolerance_;
  bool verbose_ = false, version_ = false;
  std::vector<std::string> stop_;
  Environment environment_;
  FlagSet set_;
};

TEST_F(FlagsTest, AcceptsEveryForm) {
  ASSERT_TRUE(Parse({"--model=a=b", "--grpc-port", "7", "--verbose", "one", "--stop", "x", "-",
                     "--stop=", "--acp", "paper", "--timeout=0.5", "--", "--model"})
                  .ok());
  EXPECT_EQ(model_, "a=b");
  EXPECT_EQ(port_, 7);
  EXPECT_TRUE(verbose_);
  EXPECT_EQ(acp_, "paper");
  EXPECT_EQ(timeout_, 0.5);
  EXPECT_EQ(stop_, (std::vector<std::string>{"x", ""}));
  EXPECT_EQ(set_.positional(), (std::vector<std::string>{"one", "-", "--model"}));
  EXPECT_TRUE(set_.IsSet("model"));
}

TEST_F(FlagsTest, TargetsHaveTypesAndUnitsOfTheirOwn) {
  enum class Level { kLow, kHigh } level = Level::kHigh;
  int64_t bytes = 3 << 20;
  int32_t small = -1;
  set_.Enum("level", {{"low", Level::kLow}, {"high", Level::kHigh}}, "how high", &level);
  set_.Mebibytes("room-mb", "how much", 0, 1 << 30, &bytes);
  set_.Int("small", "N", "how many", -5, 5, &small);
  EXPECT_THAT(set_.Help(), AllOf(HasSubstr("--level low|high"), HasSubstr("how high [high]"),
                                 HasSubstr("how much [3]"), HasSubstr("how many [-1]")));
  EXPECT_THAT(ErrorOf({"--level=middle"}), HasSubstr("one of low, high"));
  EXPECT_EQ(level, Level::kHigh);
  ASSERT_TRUE(Parse({"--level=low", "--room-mb=1073741824", "--small=-5"}).ok());
  EXPECT_EQ(level, Level::kLow);
  EXPECT_EQ(bytes, int64_t{1} << 50);
  EXPECT_EQ(small, -5);
  EXPECT_EQ(set_.Changed(), (Pairs{{"level", "low"}, {"room-mb", "1073741824"}, {"small", "-5"}}));
}

TEST_F(FlagsTest, BooleansCanBeTurnedOff) {
  ASSERT_TRUE(Parse({"--verbose"}).ok());
  ASSERT_TRUE(Parse({"--no-verbose"}).ok());
  EXPECT_FALSE(verbose_);
  ASSERT_TRUE(Parse({"--verbose=yes"}).ok());
  EXPECT_TRUE(verbose_);
  EXPECT_THAT(ErrorOf({"--verbose=maybe"}), HasSubstr("--verbose"));
}

TEST_F(FlagsTest, OptionalNumbersStayUnset) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_FALSE(tolerance_.has_value());
  EXPECT_THAT(set_.Help(), HasSubstr("how much\n"));  // no default
  EXPECT_THAT(set_.Values(), Contains(Pair("tolerance", "")));
  for (const char* value : {"", "nan", "-inf", "1e999", "1x"}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(ErrorOf({std::string("--tolerance=") + value}), HasSubstr("not a finite number"));
  }
  EXPECT_FALSE(tolerance_.has_value());
  ASSERT_TRUE(Parse({"--tolerance", "0"}).ok());
  EXPECT_EQ(tolerance_, 0.0);
  EXPECT_EQ(set_.Changed(), (Pairs{{"tolerance", "0"}}));
}

TEST_F(FlagsTest, TheCommandLineWinsOverTheEnvironment) {
  environment_ = {{"FOX_GRPC_PORT", "9"}, {"FOX_MODEL", "from env"}, {"FOX_STOP", "never"}};
  ASSERT_TRUE(Parse({"--grpc-port=8"}).ok());
  EXPECT_EQ(port_, 8);
  EXPECT_EQ(model_, "from env");
  EXPECT_TRUE(stop_.empty());
  EXPECT_FALSE(set_.IsSet("timeout"));
  environment_ = {{"FOX_GRPC_PORT", ""}, {"FOX_ACP", ""}, {"FOX_VERBOSE", ""}, {"FOX_MODEL", ""}};
  ASSERT_TRUE(Parse({}).ok()) << "compose and systemd set a variable without a value";
  EXPECT_EQ(set_.Changed(), (Pairs{{"model", "from env"}, {"grpc-port", "8"}}));
}

TEST_F(FlagsTest, WrongValuesNameTheFlagAndChangeNothing) {
  for (const char* value : {"-1", "65536", "", "7x", "0x7", "1e3", "99999999999999999999"}) {
    EXPECT_THAT(ErrorOf({std::string("--grpc-port=") + value}),
                HasSubstr("--grpc-port: \"" + std::string(value) + "\" is not a whole number"));
  }
  for (const char* value : {"nan", "inf", "-0.1", "10.1", ""}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(ErrorOf({std::string("--timeout=") + value}), HasSubstr("--timeout"));
  }
  EXPECT_THAT(ErrorOf({"--acp=on"}), HasSubstr("one of off, paper"));
  EXPECT_THAT(ErrorOf({"--model"}), HasSubstr("--model needs a value"));
  environment_ = {{"FOX_GRPC_PORT", "high"}};
  EXPECT_THAT(ErrorOf({}), HasSubstr("FOX_GRPC_PORT"));
  EXPECT_EQ(port_, 50051);
  EXPECT_EQ(timeout_, 1);
}

// Variables of images and of Kubernetes are no settings.
TEST_F(FlagsTest, VariablesOfOthersAreIgnored) {
  environment_ = {{"FOX_VERSION", "0.1.0"}, {"FOX_GRPC_PORT", "tcp://10.96.0.7:50051"}};
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(port_, 50051);
  EXPECT_FALSE(version_);
  ASSERT_EQ(set_.warnings().size(), 1u);
  EXPECT_THAT(set_.warnings()[0], HasSubstr("FOX_GRPC_PORT is ignored"));
  ASSERT_TRUE(Parse({"--version"}).ok());
  EXPECT_TRUE(version_);
}

TEST_F(FlagsTest, AVariableThatIsNoFlagComesWithTheNearestName) {
  const std::pair<const char*, const char*> cases[] = {
      {"FOX_MODLE", "FOX_MODLE is ignored: no flag has this name; did you mean FOX_MODEL?"},
      {"FOX_GRPCPORT", "did you mean FOX_GRPC_PORT?"},
      {"FOX_model", "did you mean FOX_MODEL?"},
      {"FOX_QQQQQQQQQQQQ", "FOX_QQQQQQQQQQQQ is ignored: no flag has this name"},
      {"FOX_", "FOX_ is ignored"},
  };
  for (const auto& [name, warning] : cases) {
    SCOPED_TRACE(name);
    FlagSet set;
    std::string model, port;
    set.String("model", "DIR", "", &model);
    set.String("grpc-port", "PORT", "", &port);
    EXPECT_TRUE(set.Parse({}, {{name, "x"}}).ok());
    ASSERT_EQ(set.warnings().size(), 1u);
    EXPECT_THAT(set.warnings()[0], HasSubstr(warning));
  }
  // The variables of a Service called fox-a, as the Kubernetes documentation has them for
  // redis-primary (Services, environment variables), and those of other programs.
  environment_ = {{"FOX_A_SERVICE_HOST", "10.0.0.11"},
                  {"FOX_A_SERVICE_PORT", "6379"},
                  {"FOX_A_SERVICE_PORT_HTTP", "6379"},
                  {"FOX_A_PORT", "tcp://10.0.0.11:6379"},
                  {"FOX_A_PORT_6379_TCP", "tcp://10.0.0.11:6379"},
                  {"FOX_A_PORT_6379_TCP_PROTO", "tcp"},
                  {"FOX_A_PORT_6379_TCP_PORT", "6379"},
                  {"FOX_A_PORT_6379_TCP_ADDR", "10.0.0.11"},
                  {"FIREFOX_PATH", "/usr/bin"},
                  {"FOXES", "2"}};
  EXPECT_TRUE(Parse({}).ok());
  EXPECT_TRUE(set_.warnings().empty());
}

// So that an error can be told in the form that another flag asks for.
TEST_F(FlagsTest, FlagsAfterAnErrorAreSet) {
  environment_ = {{"FOX_MODEL", "from env"}};
  EXPECT_THAT(ErrorOf({"--grpc-port=x", "--unknown", "--acp=paper"}), HasSubstr("--grpc-port"));
  EXPECT_EQ(acp_, "paper");
  EXPECT_EQ(model_, "from env");
}

TEST_F(FlagsTest, UnknownFlagsComeWithTheNearestName) {
  EXPECT_THAT(ErrorOf({"--grcp-port=1"}), HasSubstr("did you mean --grpc-port?"));
  EXPECT_THAT(ErrorOf({"--modle", "x"}), HasSubstr("did you mean --model?"));
  EXPECT_THAT(ErrorOf({"--tol"}), HasSubstr("did you mean --tolerance?"));
  int64_t http_port = 0, host = 0;
  set_.Int("http-port", "PORT", "another port", 0, 65535, &http_port);
  set_.Int("host", "N", "fewer edits from --port", 0, 1, &host);
  EXPECT_THAT(ErrorOf({"--port=1"}), HasSubstr("did you mean --grpc-port or --http-port?"));
  for (const char* far : {"--zzzzzzzzzzzz", "--=", "--=x"}) {
    EXPECT_THAT(ErrorOf({far}), Not(HasSubstr("did you mean"))) << far;
  }
  EXPECT_THAT(ErrorOf({"-x"}), HasSubstr("unknown flag -x"));
  EXPECT_THAT(ErrorOf({"-h"}), HasSubstr("unknown flag -h"));
  bool help = false;
  set_.Action("help", "print this and exit", &help);
  EXPECT_TRUE(Parse({"-h"}).ok() && help);
}

TEST_F(FlagsTest, TypesOfNumbersHaveNamesOfPyTorchToo) {
  std::string dtype = "auto";
  set_.DTypeChoice("dtype", "type of weights", &dtype);
  EXPECT_THAT(set_.Help(), HasSubstr("--dtype auto|f64|f32|bf16"));
  for (const auto& [said, meant] :
       Pairs{{"bfloat16", "bf16"}, {"float32", "f32"}, {"float64", "f64"}, {"f32", "f32"}}) {
    ASSERT_TRUE(Parse({"--dtype", said}).ok()) << said;
    EXPECT_EQ(dtype, meant);
  }
  for (const char* half : {"fp16", "float16", "half"}) {
    EXPECT_THAT(ErrorOf({"--dtype", half}), HasSubstr("of 16 bits, bf16 alone is supported"))
        << half;
  }
}

TEST_F(FlagsTest, HelpIsGroupedAndValuesAreComplete) {
  const std::string help = set_.Help();
  EXPECT_LT(help.find("First:"), help.find("--grpc-port PORT"));
  EXPECT_LT(help.find("--grpc-port PORT"), help.find("Second:"));
  EXPECT_THAT(help, HasSubstr("[50051]"));
  port_ = 1;  // derived, not set
  ASSERT_TRUE(Parse({"--acp=paper", "--model=none"}).ok());
  EXPECT_EQ(set_.Changed(), (Pairs{{"acp", "paper"}}));
  EXPECT_THAT(set_.Values(), Contains(Pair("acp", "paper")));
  EXPECT_THAT(set_.Values(), Contains(Pair("model", "none")));
}

TEST(SuggestionTest, PrefersBeginningsAndDoesNotGuess) {
  const std::vector<std::string> names = {"generate", "score", "top", "get", "gets", "getting"};
  for (const auto& [typed, said] : Pairs{{"gen", "; did you mean generate?"},
                                         {"scroe", "; did you mean score?"},
                                         {"get", "; did you mean get or gets or getting?"},
                                         {"ge", "; did you mean get?"},  // four begin with it
                                         {"chat", ""},
                                         {"", ""}}) {
    EXPECT_EQ(Suggestion(typed, names, ""), said) << typed;
  }
}

}  // namespace
}  // namespace fox
