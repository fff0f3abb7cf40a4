// Call: one request from its admission to its last byte, whatever its form on the wire: n prompts
// with n sequences each. A Format makes requests of its message and bytes of its events, a
// Transport writes them. Several threads work for a call: the transport's, an admission thread, the
// engine's, the delivery lane that the call keeps. They meet under one mutex; what to do next is
// chosen under it and done without it. Read sequence_events.h next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/delivery_pool.h"
#include "server/calls/access/call_info.h"
#include "server/calls/call_metrics.h"
#include "server/calls/format.h"
#include "server/calls/sequence_events.h"
#include "server/calls/server_core.h"
#include "server/calls/transport.h"

namespace fox {

// Lives as long as its transport, a thread that works for it, or the engine holds it.
class Call final : public std::enable_shared_from_this<Call> {
 public:
  // A call only goes forward from stage to stage; a failure may skip some.
  enum class Stage : uint8_t {
    kAdmitted,    // waits for its client's turn on the admission pool
    kConverting,  // an admission thread parses its message and converts its prompts
    kRunning,     // its prompts wait for their grammar or in the engine's queue, or run
    kDraining,    // the transport has the end of the answer, and still writes
    kEnded,       // nothing is held for it any more
  };
  enum class Work : uint8_t {
    kGenerate,  // prompts go to the engine
    kTokenize,  // the conversion is all: it has no prompts, and a queue of its own
  };

  // `info`: as ServerCore::Describe made it.
  Call(ServerCore& core, CallInfo info, Work work, std::unique_ptr<Format> format,
       std::shared_ptr<Transport> transport);

  // Takes the call's share of the budget and queues its conversion; or refuses it, and ends it on
  // the transport. `bytes`: the size of its message. Once, before any other method.
  void Start(int64_t bytes);

  // From the transport: see transport.h.
  void OnWritten();
  void OnSilence();
  void OnClosed(const absl::Status& reason);
  void OnReleased();

  // For a prompt in the registry. AbortPrompt ends its sequences, which finish with ABORT.
  // AbandonPrompt ends it with `status` without the engine, which hangs.
  void AbortPrompt(size_t prompt);
  void AbandonPrompt(size_t prompt, const absl::Status& status);

  Stage stage() const;

 private:
  // One prompt: its n sequences, which the engine takes or refuses together.
  struct PromptRun final : SubmissionListener {
    PromptRun(Call& owner, size_t number) : call(owner), index(number) {}
    void OnSubmitted(const absl::Status& status) override { call.EndAdmission(this, status); }
    void OnOutput(RequestOutput output, Seconds when) override {
      call.ReceiveOutput(this, std::move(output), when);
    }

    Call& call;
    const size_t index;

    // Written by admission, then used by the lane alone.
    GenerationSpec spec;               // its sequences go to the engine
    bool registered = false;           // in the registry
    std::string cache_salt;            // Request::cache_salt of all its sequences
    bool bypass_prefix_cache = false;  // likewise
    v1::GenerateDelta prompt_event;
    PromptTotals totals;
    std::vector<SequenceEvents> sequences;

    // Under the call's mutex.
    // True once admission is through with the prompt, or the call has failed before. Admission
    // cannot be interrupted: it finds a failed call's prompts decided, and leaves them alone.
    bool decided = false;
    std::vector<RequestId> ids;             // given to the engine
    std::optional<absl::Status> cancelled;  // Ok: aborted

    // Used by the lane alone.
    size_t finished = 0;  // sequences
    bool done = false;
    absl::Status failure;
  };

  // Brings an audit back to the lane, with the output that waited for it.
  struct AuditEnd final : SubmissionListener {
    AuditEnd(std::shared_ptr<Call> owner, PromptRun* prompt)
        : call(std::move(owner)), run(prompt) {}
    void OnSubmitted(const absl::Status& /*status*/) override {}
    void OnOutput(RequestOutput output, Seconds when) override {
      call->ReceiveAudit(run, output, audit, when);
    }

    const std::shared_ptr<Call> call;
    PromptRun* const run;
    v1::Audit audit;
  };

  // The consequences of a change under the mutex, which are carried out without it.
  struct Step {
    enum { kNothing, kWrite, kEnd } action = kNothing;
    std::string bytes;
    bool stream_has_begun = false;
    absl::Status failure;
    std::vector<PromptRun*> undecided;  // end with the failure
    std::vector<RequestId> cancelled;   // end in the engine
  };

  // Holds the mutex for a change. Its end chooses the next step under the mutex, and performs the
  // step without it.
  class ABSL_SCOPED_LOCKABLE Transition {
   public:
    explicit Transition(Call& call) ABSL_EXCLUSIVE_LOCK_FUNCTION(call.mutex_) : call_(call) {
      call_.mutex_.Lock();
    }
    ~Transition() ABSL_UNLOCK_FUNCTION();
    Transition(const Transition&) = delete;
    Transition& operator=(const Transition&) = delete;

   private:
    Call& call_;
  };

  // On the admission pool.
  void RunAdmission();
  absl::Status ParseMessage();
  absl::Status AddPrompts(const CallOutline& outline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPrompt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ConvertPrompt(PromptRun* run);
  // In the client's turn on the grammar queue. False: it takes more than `effort`.
  bool CompileGrammar(PromptRun* run, GrammarCompiler::Effort effort);
  absl::StatusOr<std::shared_ptr<void>> PayForGrammar(int64_t bytes) const;
  void SubmitPrompt(PromptRun* run, const std::shared_ptr<const Grammar>& grammar);
  // Admission is through with the prompt: the engine has taken it, or it ends with an error. Any
  // thread.
  void EndAdmission(PromptRun* run, const absl::Status& status);
  // Tells the lane that the prompt runs or, with an error, that it is over.
  void PostBegin(PromptRun* run, const absl::Status& status);

  // On the call's lane.
  void ReceiveOutput(PromptRun* run, RequestOutput output, Seconds when);
  void ConsumeOutput(PromptRun* run, const RequestOutput& output, Seconds when);
  // Audits a sequence that has ended well, if it is to be audited. True: its end, which `output`
  // has, waits for the result.
  bool StartAudit(PromptRun* run, SequenceEvents* sequence, const RequestOutput& output,
                  Seconds when);
  void ReceiveAudit(PromptRun* run, const RequestOutput& output, const v1::Audit& audit,
                    Seconds when);
  void EndSequence(PromptRun* run, SequenceEvents* sequence, const Finish& finish,
                   const v1::Audit* audit, Seconds when);
  SequenceEvents& FindSequence(PromptRun* run, RequestId id);
  absl::Status DeliverEvents();  // events_; returns the failure of the call
  void FailPrompt(PromptRun* run, const absl::Status& status);  // Ok: it goes on
  void CompletePrompt(PromptRun* run);

  void CancelPrompt(PromptRun* run, const absl::Status& status);
  PromptRun* FindPrompt(size_t prompt);

  void SetFailure(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the share to the bytes that are kept and in flight. False: the budget is full, and nothing
  // has changed.
  bool AccountBytes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the budget does not admit the call's bytes: AnswerTooLarge if it never will, so that
  // clients do not try again; else AnswersUnread.
  absl::Status NoRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step NextStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing is written or held any more: gives back the share.
  void EndCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CollectCancelled(Step* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PerformStep(Step step);

  ServerCore& core_;
  const Work work_;
  const size_t lane_;
  const std::unique_ptr<Format> format_;  // see format.h for which thread may call what
  const std::shared_ptr<Transport> transport_;
  std::vector<CallEvent> events_;  // used by the lane alone

  mutable Mutex mutex_;
  CallInfo info_;  // its share, the last prompt's, is used under the mutex
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kAdmitted;
  bool stream_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first one
  std::vector<std::unique_ptr<PromptRun>> prompts_ ABSL_GUARDED_BY(mutex_);
  size_t open_prompts_ ABSL_GUARDED_BY(mutex_) = 0;                // not completed
  std::vector<CallBudget::Share> shares_ ABSL_GUARDED_BY(mutex_);  // of the other prompts
  int64_t accounted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;            // in the share
  bool writing_ ABSL_GUARDED_BY(mutex_) = false, begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;     // by the transport
  Format::Output in_flight_ ABSL_GUARDED_BY(mutex_);  // its bytes are with the transport
  int64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Ends the prompts of this id that the caller may end; they finish with ABORT. False: none runs.
bool AbortCalls(ServerCore& core, const CallInfo& caller, const std::string& request_id);
// Ends all running prompts without the engine, which hangs.
void AbandonCalls(ServerCore& core, const absl::Status& status);

}  // namespace fox
