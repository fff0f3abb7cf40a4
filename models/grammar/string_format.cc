// The table of formats. Dates exist in the calendar (29 February of centuries is left out), times
// have no leap seconds, labels of host names have any length, URIs name no user. Counts of letters
// that something else than letters may follow, and parts that begin alike, as a user and a host,
// are left out: with 100,000 tokens the mask behind a letter would cost more than a token may, as
// each token is then parsed by itself. See string_format.h.
#include "models/grammar/string_format.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fox {
namespace {

constexpr char kDate[] =
    "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))|[1-9][0-9](0[48]|[2468][048]|[13579][26])-02-29)";
constexpr char kTime[] =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr char kHost[] = "[a-z0-9]+(-[a-z0-9]+)*(\\.[a-z0-9]+(-[a-z0-9]+)*)*";

// RFC 3339, appendix A.
std::string Duration() {
  const std::string n = "[0-9]{1,9}";
  const std::string minutes = absl::StrCat(n, "M(", n, "S)?");
  const std::string time = absl::StrCat("T(", n, "H(", minutes, ")?|", minutes, "|", n, "S)");
  const std::string months = absl::StrCat(n, "M(", n, "D)?");
  const std::string date = absl::StrCat("(", n, "Y(", months, ")?|", months, "|", n, "D)");
  return absl::StrCat("P(", date, "(", time, ")?|", time, "|", n, "W)");
}

std::string Ipv4() {
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  return absl::StrCat("(", byte, "\\.){3}", byte);
}

// RFC 4291, 2.2, without IPv4 at its end: eight groups, or :: for one or more of them.
std::string Ipv6() {
  const std::string group = "[0-9a-f]{1,4}";
  std::vector<std::string> forms = {absl::StrCat("(", group, ":){7}", group)};
  for (int before = 0; before <= 7; ++before) {
    std::string form = before == 0 ? ":" : absl::StrCat("(", group, ":){", before, "}");
    const int behind = 7 - before;  // at most
    absl::StrAppend(&form, ":");
    if (behind > 0) absl::StrAppend(&form, "(", group, "(:", group, "){0,", behind - 1, "})?");
    forms.push_back(std::move(form));
  }
  return absl::StrCat("(", absl::StrJoin(forms, "|"), ")");
}

// RFC 3986, appendix A, without addresses in brackets.
std::string Uri(bool is_reference) {
  const std::string coded = "|%[0-9A-Fa-f][0-9A-Fa-f])";
  const std::string plain = "([A-Za-z0-9._~!$&'()*+,;=", letter = plain + ":@-]" + coded;
  const std::string authority = absl::StrCat(plain, "-]", coded, "*(:[0-9]{0,5})?");
  const std::string rest = absl::StrCat("(/", letter, "*)*");
  // Without a scheme the first segment has no colon.
  const std::string begin = is_reference ? plain + "@-]" + coded : letter;
  const std::string path =
      absl::StrCat("(//", authority, rest, "|/(", letter, "+", rest, ")?|", begin, "+", rest, ")?");
  const std::string query = plain + ":@/?-]" + coded + "*";
  return absl::StrCat("([a-z][a-z0-9+.-]*:)", is_reference ? "?" : "", path, "(\\?", query, ")?(#",
                      query, ")?");
}

const std::vector<StringFormat>& Formats() {
  static const std::vector<StringFormat> formats = {
      {"date", kDate, 10, 10},
      {"time", kTime, 9, 24},
      {"date-time", absl::StrCat(kDate, "T", kTime), 20, 35},
      {"duration", Duration(), 3, 63},
      {"email",
       absl::StrCat("[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@", kHost),
       3, -1},
      {"hostname", kHost, 1, -1},
      {"ipv4", Ipv4(), 7, 15},
      {"ipv6", Ipv6(), 2, 39},
      {"uri", Uri(false), 2, -1},
      {"uri-reference", Uri(true), 0, -1},
      {"uuid", "[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}", 36, 36},
      {"idn-email"},
      {"idn-hostname"},
      {"iri"},
      {"iri-reference"},
      {"json-pointer"},
      {"regex"},
      {"relative-json-pointer"},
      {"uri-template"},
  };
  return formats;
}

}  // namespace

const StringFormat* FindStringFormat(const std::string& name) {
  const auto found = std::find_if(Formats().begin(), Formats().end(),
                                  [&](const StringFormat& format) { return format.name == name; });
  return found == Formats().end() ? nullptr : &*found;
}

}  // namespace fox
