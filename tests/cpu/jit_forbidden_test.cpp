// Compilation in a process that may not make memory executable, such as a systemd service with MemoryDenyWriteExecute.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiled_program.h"
#include "cpu/score_function.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {
namespace {

constexpr int kSetMemoryDenyWriteExecute = 65;  // PR_SET_MDWE of Linux 6.3
constexpr int kSkipped = 77;

TEST(JitForbidden, SaysWhatIsForbidden) {
  const Isa isa = available_isas().back();
  if (!compiles_programs(isa)) {
    GTEST_SKIP() << "programs are interpreted here";
  }
  ::testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    if (prctl(kSetMemoryDenyWriteExecute, 1UL, 0UL, 0UL, 0UL) != 0) {
      _exit(kSkipped);
    }
    const auto compiled = compile_score(*parse_problem("attn h1 s8 d8 softcap=30"), isa);
    const bool is_told = !compiled.ok() && compiled.error().kind == ErrorKind::kUnsupported &&
                         compiled.error().message.find("Permission denied") != std::string::npos;
    _exit(is_told ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kSkipped) {
    GTEST_SKIP() << "this kernel is older than 6.3";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace flashlift::cpu
