// fox-eval logits and fox-eval greedy: the model's answers, to compare with other implementations.
#include <bit>
#include <cstdio>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/eval/eval_command.h"
#include "engine/eval/teacher_forcing.h"

namespace fox {
namespace {

// One tensor `logits`, little-endian, as a safetensors file.
absl::Status WriteLogits(const std::string& path, DType dtype, int64_t rows, int64_t cols,
                         const std::vector<std::byte>& data) {
  static_assert(std::endian::native == std::endian::little);
  std::string header =
      absl::StrCat("{\"logits\":{\"dtype\":\"", dtype == DType::kF64 ? "F64" : "F32",
                   "\",\"shape\":[", rows, ",", cols, "],\"data_offsets\":[0,", data.size(), "]}}");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof(size));
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  out.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace

absl::Status EvalLogits(const Arguments& arguments) {
  EvalFlags common;
  std::string ids_path, out_path;
  int64_t decode_from = -1;
  FlagSet flags;
  common.Register(flags);
  flags.Group("Logits");
  flags.String("ids", "FILE", "JSON list of token ids", &ids_path);
  flags.String("out", "FILE", "safetensors file to write: logits [T, vocab]", &out_path);
  flags.Int("decode-from", "P", "positions from P on go one by one; -1: none", -1,
            std::numeric_limits<int32_t>::max(), &decode_from);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-eval logits"); !s.ok()) return s;
  if (absl::Status s = Require(common.model, "model"); !s.ok()) return s;
  if (absl::Status s = Require(ids_path, "ids"); !s.ok()) return s;
  if (absl::Status s = Require(out_path, "out"); !s.ok()) return s;

  const auto ids = ReadIds(ids_path);
  if (!ids.ok()) return ids.status();
  const auto runner = LoadRunner(common.Config(static_cast<int64_t>(ids->size())));
  if (!runner.ok()) return runner.status();
  std::vector<std::byte> data;
  DType dtype = DType::kF32;
  TeacherForcingOptions options;
  options.chunk = common.chunk;
  options.decode_from = decode_from;
  options.log_tolerance = common.Tolerance((*runner)->weights().config);
  absl::Status run =
      RunTeacherForced(**runner, *ids, options, [&](int64_t, const MatrixView& logits) {
        dtype = logits.dtype;
        const auto bytes = static_cast<size_t>(logits.rows * logits.cols) * SizeOf(dtype);
        const auto* first = static_cast<const std::byte*>(logits.data);
        data.insert(data.end(), first, first + bytes);
      });
  if (!run.ok()) return run;
  return WriteLogits(out_path, dtype, static_cast<int64_t>(ids->size()),
                     (*runner)->weights().config.vocab_size, data);
}

absl::Status EvalGreedy(const Arguments& arguments) {
  EvalFlags common;
  std::string ids_path;
  int64_t count = 32;
  FlagSet flags;
  common.Register(flags);
  flags.Group("Greedy");
  flags.String("ids", "FILE", "JSON list of token ids", &ids_path);
  flags.Int("new", "N", "tokens to generate; end of sequence does not stop", 1, 1 << 24, &count);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-eval greedy"); !s.ok()) return s;
  if (absl::Status s = Require(common.model, "model"); !s.ok()) return s;
  if (absl::Status s = Require(ids_path, "ids"); !s.ok()) return s;

  auto ids = ReadIds(ids_path);
  if (!ids.ok()) return ids.status();
  auto loaded = LoadEngine(common.Config(static_cast<int64_t>(ids->size()) + count));
  if (!loaded.ok()) return loaded.status();
  Request request;
  request.prompt = std::move(*ids);
  request.sampling.temperature = 0;
  request.stop.max_tokens = static_cast<int32_t>(count);
  request.stop.ignore_eos = true;
  if (absl::Status s = loaded->engine->Submit(std::move(request), 0); !s.ok()) return s;
  std::string list;
  while (loaded->engine->HasWork()) {
    for (const RequestOutput& output : loaded->engine->Step(0)) {
      for (const SampledToken& token : output.tokens) {
        absl::StrAppend(&list, list.empty() ? "" : ", ", token.id);
      }
      if (output.finish && !output.finish->status.ok()) return output.finish->status;
    }
  }
  std::printf("[%s]\n", list.c_str());
  return absl::OkStatus();
}

}  // namespace fox
