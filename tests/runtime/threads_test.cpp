// Fewer threads than cores, and more threads than cores.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "flashlift/attention.h"
#include "runtime/tbb_executor.h"
#include "support/tensors.h"

namespace flashlift {
namespace {

constexpr int kSkipped = 77;

// The exit code of a child that has a pool of its own. Its stderr output goes to `printed`.
int exit_code_of_child(const std::function<int()>& body, std::string& printed) {
  ::testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  printed = ::testing::internal::GetCapturedStderr();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int computes() {
  const Problem problem = *parse_problem("attn h8 s256 d32");
  const Result<Attention> attention = Attention::compile(problem);
  testing::Random random(1);
  testing::OwnedArguments arguments = testing::dense_arguments(problem, random);
  return attention.ok() && attention->run(arguments.views).ok() ? 0 : 1;
}

// Makes every later start of a thread fail, as in a container that has reached its limit of processes.
bool forbid_threads() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 1, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter = {sizeof(program) / sizeof(*program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(Threads, AreNotNeeded) {
  std::string printed;
  const int code = exit_code_of_child([] { return forbid_threads() ? computes() : kSkipped; }, printed);
  if (code == kSkipped) {
    GTEST_SKIP() << "system calls cannot be filtered here";
  }
  EXPECT_EQ(code, 0);
  EXPECT_EQ(printed, "");
}

TEST(Threads, MayBeMoreThanCores) {
  const unsigned wanted = std::thread::hardware_concurrency() + 3;
  std::string printed;
  const auto count_threads = [&] {
    setenv("FLASHLIFT_THREADS", std::to_string(wanted).c_str(), 1);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    runtime::default_executor().parallel_for(20 * wanted, [&](int64_t) {
      {
        const std::lock_guard lock(mutex);
        seen.insert(std::this_thread::get_id());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
    return seen.size() == wanted ? computes() : 2;
  };
  EXPECT_EQ(exit_code_of_child(count_threads, printed), 0);
  EXPECT_EQ(printed, "");
}

}  // namespace
}  // namespace flashlift
