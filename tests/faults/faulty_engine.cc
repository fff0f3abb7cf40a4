// In front of the model of the program fox-server-faulty: an executor that fails where the page
// says. The program is server/main.cc; the linker has it call WrappedLoadEngine for LoadEngine.
#include <unistd.h>

#include <limits>
#include <utility>
#include <vector>

#include "engine/engine_factory.h"
#include "tests/faults/fault_page.h"

namespace fox {
namespace {

class FaultyExecutor final : public StepExecutor {
 public:
  FaultyExecutor(std::unique_ptr<StepExecutor> executor, FaultPage* page)
      : executor_(std::move(executor)), page_(page) {}

  const ExecutorLimits& limits() const override { return executor_->limits(); }

  absl::Status Submit(const StepPlan& plan) override {
    if (Fails(ExecutorFault::kSubmit)) broken_ = true;
    if (broken_) return Broken();
    rows_ = plan.sequences.size();
    return executor_->Submit(plan);
  }

  absl::Status SetMasks(const std::vector<const uint32_t*>& masks) override {
    return executor_->SetMasks(masks);
  }

  absl::StatusOr<StepResult> Collect() override {
    if (Fails(ExecutorFault::kCollect)) broken_ = true;
    if (broken_) return Broken();
    if (Fails(ExecutorFault::kHang)) pause();
    absl::StatusOr<StepResult> result = executor_->Collect();
    if (Fails(ExecutorFault::kReadback)) broken_ = true;
    if (broken_) return Broken();
    if (!result.ok()) return result;
    // A plan with several sequences: the others go on.
    if (rows_ > 1 && result->logits.back() != nullptr && Fails(ExecutorFault::kNotFinite)) {
      spoilt_.assign(static_cast<size_t>(limits().vocab_size),
                     std::numeric_limits<float>::quiet_NaN());
      result->logits.back() = spoilt_.data();
    }
    return result;
  }

 private:
  bool Fails(ExecutorFault fault) const {
    return page_ != nullptr && page_->executor_fault.load() == fault &&
           page_->Fails(FaultKind::kExecutor);
  }
  static absl::Status Broken() { return absl::UnavailableError("device: made to fail"); }

  const std::unique_ptr<StepExecutor> executor_;
  FaultPage* const page_;
  bool broken_ = false;  // as a device's error stays
  size_t rows_ = 0;
  std::vector<float> spoilt_;
};

}  // namespace

absl::StatusOr<LoadedEngine> RealLoadEngine(const EngineConfig& config) __asm__(
    "__real__ZN3fox10LoadEngineERKNS_12EngineConfigE");
absl::StatusOr<LoadedEngine> WrappedLoadEngine(const EngineConfig& config) __asm__(
    "__wrap__ZN3fox10LoadEngineERKNS_12EngineConfigE");

// With matrix products that do not depend on the batch, so that each stream has one right answer.
absl::StatusOr<LoadedEngine> WrappedLoadEngine(const EngineConfig& config) {
  EngineConfig plain = config;
  plain.plain_gemm = true;
  absl::StatusOr<LoadedEngine> loaded = RealLoadEngine(plain);
  if (!loaded.ok()) return loaded;
  loaded->executor =
      std::make_unique<FaultyExecutor>(std::move(loaded->executor), FaultPage::Inherited());
  loaded->engine = std::make_unique<Engine>(loaded->options, *loaded->executor, config.observers);
  return loaded;
}

}  // namespace fox
