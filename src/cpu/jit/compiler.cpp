#include "cpu/jit/compiler.h"

#include <llvm/ExecutionEngine/Orc/CompileUtils.h>
#include <llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "cpu/jit/emitter.h"
#include "cpu/jit/math_library.h"
#include "support/error.h"
#include "support/own_stack.h"

namespace flashlift::cpu {
namespace {

Error llvm_error(llvm::Error error, const char* what) {
  return internal_error("LLVM could not {}: {}", what, llvm::toString(std::move(error)));
}

// Collects the errors that LLVM reports to a session instead of the caller, and would otherwise print to stderr.
class SessionErrors {
 public:
  // The session shares ownership, because it may outlive the caller.
  static std::shared_ptr<SessionErrors> of(llvm::orc::ExecutionSession& session) {
    auto errors = std::make_shared<SessionErrors>();
    session.setErrorReporter([errors](llvm::Error error) { errors->add(std::move(error)); });
    return errors;
  }

  Error error(llvm::Error of_caller, const char* what) const {
    const Error error = llvm_error(std::move(of_caller), what);
    if (is_forbidden_) {
      return unsupported(
          "score and mask programs are compiled into memory that is made executable, which this process may not do "
          "({}): allow it, as systemd's MemoryDenyWriteExecute=no and SELinux's execmem do, or set "
          "FLASHLIFT_ISA=portable, which interprets them slowly",
          text_);
    }
    return text_.empty() ? error : internal_error("{}: {}", error.message, text_);
  }

 private:
  void add(llvm::Error error) {
    llvm::handleAllErrors(std::move(error), [&](const llvm::ErrorInfoBase& info) {
      text_ += (text_.empty() ? "" : "; ") + info.message();
      const std::error_code code = info.convertToErrorCode();
      is_forbidden_ =
          is_forbidden_ || code == std::errc::permission_denied || code == std::errc::operation_not_permitted;
    });
  }

  std::string text_;
  bool is_forbidden_ = false;
};

// LLVM aborts the process if an allocation fails. This check therefore allocates the memory that a compile needs, and
// frees it again for LLVM.
Status check_memory(const Problem& problem) {
  constexpr size_t kOfAll = size_t{32} << 20;
  constexpr size_t kOfANode = size_t{32} << 10;
  const size_t bytes = kOfAll + count_nodes(problem) * kOfANode;
  void* memory = ::operator new(bytes, std::nothrow);
  ::operator delete(memory);
  return memory != nullptr ? Status()
                           : internal_error("not enough memory to compile: it takes up to {} MiB", bytes >> 20);
}

// LLVM recurses from an operation to its operands, with several calls for each node of a long program. A program with
// few nodes fits a stack of 128 KiB; a larger one is compiled on a stack of its own.
template <typename Compile>
auto with_stack(const Problem& problem, const Compile& compile) -> decltype(compile()) {
  constexpr size_t kFewNodes = 128;
  if (count_nodes(problem) <= kFewNodes) {
    return compile();
  }
  std::optional<decltype(compile())> result;
  FLASHLIFT_RETURN_IF_ERROR(run_on_own_stack([&] { result.emplace(compile()); }));
  return *std::move(result);
}

class OrcScore : public CompiledScore {
 public:
  std::unique_ptr<llvm::orc::LLJIT> jit;
};

class OrcGradient : public CompiledGradient {
 public:
  std::unique_ptr<llvm::orc::LLJIT> jit;
};

llvm::Expected<llvm::orc::JITTargetMachineBuilder> target_machine(Isa isa, const llvm::Module& module) {
  // The time of LLVM's register allocator grows with the square of a program's length: 17 s for 1000 tanh, but 2 s
  // without optimisation. Results have the same bits.
  constexpr unsigned kManyInstructions = 30'000;
  static constinit std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
  llvm::Expected<llvm::orc::JITTargetMachineBuilder> builder = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (builder && isa == Isa::kAvx2) {
    // Without this, the host's own features would enable wider vectors.
    builder->getFeatures() = llvm::SubtargetFeatures();
    builder->setCPU("x86-64-v3");
  }
  if (builder) {
    const bool is_long = module.getInstructionCount() > kManyInstructions;
    builder->setCodeGenOptLevel(is_long ? llvm::CodeGenOptLevel::None : llvm::CodeGenOptLevel::Default);
    builder->setCodeModel(llvm::CodeModel::Small);  // these two as LLJIT's linker needs them
    builder->setRelocationModel(llvm::Reloc::PIC_);
  }
  return builder;
}

// The code generator would crash on a module that the verifier refuses. Such a module is a defect of the emitter.
Status check(const llvm::Module& module) {
  std::string message;
  llvm::raw_string_ostream stream(message);
  if (llvm::verifyModule(module, &stream)) {
    return internal_error("the code generated for a score program is malformed: {}", message);
  }
  return {};
}

llvm::Error define_library(llvm::orc::LLJIT& jit, Isa isa) {
  llvm::orc::SymbolMap symbols;
  for (const LibraryFunction& function : math_library(isa)) {
    symbols[jit.mangleAndIntern(function.name)] = {llvm::orc::ExecutorAddr::fromPtr(function.address),
                                                   llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  }
  return jit.getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols)));
}

// Compiles a module with a masked function and, if it is named, an unmasked one. The module is destroyed before its
// context, also after a failure, because the context is shared before the module exists.
template <typename Compiled, typename Base>
Result<std::shared_ptr<Base>> compile(std::unique_ptr<llvm::Module> module, const llvm::orc::ThreadSafeContext& context,
                                      Isa isa, const char* masked, const char* unmasked) {
  auto machine = target_machine(isa, *module);
  if (!machine) {
    return llvm_error(machine.takeError(), "find out what this processor is");
  }
  // The compiler of a session without threads would keep its code generator: 0.6 MiB for each program. This one does
  // not. It is made here, since LLVM's code frees nothing if an exception passes through it.
  std::unique_ptr<llvm::orc::IRCompileLayer::IRCompiler> compiler =
      std::make_unique<llvm::orc::ConcurrentIRCompiler>(*machine);
  const auto take_compiler = [&compiler](const llvm::orc::JITTargetMachineBuilder&)
      -> llvm::Expected<std::unique_ptr<llvm::orc::IRCompileLayer::IRCompiler>> { return std::move(compiler); };
  auto jit = llvm::orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(std::move(*machine))
                 .setCompileFunctionCreator(take_compiler)
                 .setPlatformSetUp(llvm::orc::setUpInactivePlatform)
                 .create();
  if (!jit) {
    return llvm_error(jit.takeError(), "start its just-in-time compiler");
  }
  const auto session_errors = SessionErrors::of((*jit)->getExecutionSession());
  if (llvm::Error error = define_library(**jit, isa)) {
    return llvm_error(std::move(error), "define the library of elementary functions");
  }
  module->setDataLayout((*jit)->getDataLayout());
  module->setTargetTriple((*jit)->getTargetTriple());
  FLASHLIFT_RETURN_IF_ERROR(check(*module));
  if (llvm::Error error = (*jit)->addIRModule({std::move(module), context})) {
    return llvm_error(std::move(error), "take the code made for a score program");
  }
  auto compiled = std::make_shared<Compiled>();
  const auto find = [&](const char* name, auto& function) -> Status {
    if (name != nullptr) {
      auto symbol = (*jit)->lookup(name);
      if (!symbol) {
        return session_errors->error(symbol.takeError(), "compile a score program");
      }
      function = symbol->template toPtr<std::remove_reference_t<decltype(function)>>();
    }
    return {};
  };
  FLASHLIFT_RETURN_IF_ERROR(find(masked, compiled->masked));
  FLASHLIFT_RETURN_IF_ERROR(find(unmasked, compiled->unmasked));
  compiled->jit = std::move(*jit);
  return std::shared_ptr<Base>(std::move(compiled));
}

}  // namespace

size_t count_nodes(const Problem& problem) {
  size_t nodes = 0;
  for (const auto* program : {&problem.score_mod, &problem.mask_mod}) {
    nodes += *program ? (*program)->nodes.size() : 0;
  }
  return nodes;
}

Result<std::shared_ptr<const CompiledScore>> jit_score(const Problem& problem, Isa isa) {
  FLASHLIFT_RETURN_IF_ERROR(check_memory(problem));
  return with_stack(problem, [&] {
    auto owned = std::make_unique<llvm::LLVMContext>();
    llvm::LLVMContext& inside = *owned;
    const llvm::orc::ThreadSafeContext context(std::move(owned));
    std::unique_ptr<llvm::Module> module = emit_score_module(inside, problem, isa);
    return compile<OrcScore, const CompiledScore>(std::move(module), context, isa, kMaskedName,
                                                  problem.score_mod ? kUnmaskedName : nullptr);
  });
}

Result<std::shared_ptr<const CompiledGradient>> jit_gradient(const Problem& problem, Isa isa,
                                                             const std::vector<bool>& wants_gradient) {
  FLASHLIFT_RETURN_IF_ERROR(check_memory(problem));
  return with_stack(problem, [&] {
    auto owned = std::make_unique<llvm::LLVMContext>();
    llvm::LLVMContext& inside = *owned;
    const llvm::orc::ThreadSafeContext context(std::move(owned));
    std::unique_ptr<llvm::Module> module = emit_gradient_module(inside, problem, isa, wants_gradient);
    return compile<OrcGradient, const CompiledGradient>(std::move(module), context, isa, kMaskedGradientName,
                                                        problem.score_mod ? kUnmaskedGradientName : nullptr);
  });
}

namespace {

Result<std::string> assembly_on_this_stack(const Problem& problem, Isa isa) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> module = emit_score_module(context, problem, isa);
  auto builder = target_machine(isa, *module);
  if (!builder) {
    return llvm_error(builder.takeError(), "find out what this processor is");
  }
  auto machine = builder->createTargetMachine();
  if (!machine) {
    return llvm_error(machine.takeError(), "make a code generator");
  }
  module->setDataLayout((*machine)->createDataLayout());
  module->setTargetTriple((*machine)->getTargetTriple());
  FLASHLIFT_RETURN_IF_ERROR(check(*module));
  llvm::SmallVector<char, 0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager passes;
  if ((*machine)->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile)) {
    return internal_error("LLVM cannot print assembly for this processor");
  }
  passes.run(*module);
  return std::string(text.data(), text.size());
}

}  // namespace

Result<std::string> jit_assembly(const Problem& problem, Isa isa) {
  FLASHLIFT_RETURN_IF_ERROR(check_memory(problem));
  return with_stack(problem, [&] { return assembly_on_this_stack(problem, isa); });
}

}  // namespace flashlift::cpu
