# `make test` and `make demo` do their whole set-up on a fresh Debian 12; see README.md.

BUILD  := build
VENV   := $(BUILD)/venv
PYTHON ?= python3
JOBS   ?= $(shell nproc)

SETUP     := $(BUILD)/setup
SETUP_LOG := $(SETUP)/log.txt
NINJA_FLAGS := -j$(JOBS) $(shell test -t 1 || echo --quiet)

export PYTHON FLASHLIFT_SETUP_LOG := $(SETUP_LOG)
# pip's packages of other environments must not leak into ours.
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help demo demo-client test test-torch-versions test-jax-versions test-jax-users test-frameworks test-kernels test-aarch64 soak soak-lifting bench bench-peers build wheel wheel-aarch64 wheel-kernels test-wheel test-wheel-aarch64 test-packages test-dist dist install deb build-package words docs gallery test-gallery format lint lint-format lint-changed asan tsan hostile plugins fuzz setup system lint-system clean

help: ## show this list
	@echo "Flashlift: make TARGET"
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: build ## find and fuse the attention of a sentence encoder, and compare results, time and memory
	@$(VENV)/bin/python examples/minilm/demo.py

# `client` is the example's, and needs no Python: export.py writes the model and its arguments to files.
demo-client: build ## run the same encoder from a C++ PJRT client, without Python, fused and unfused
	@mkdir -p $(BUILD)/minilm && c++ -O2 -std=c++17 examples/xla/client.cpp -o $(BUILD)/client -ldl
	@$(VENV)/bin/python examples/minilm/export.py $(BUILD)/minilm
	@folder_of() { $(VENV)/bin/python -c "import $$1; print($$1.__path__[0])"; }; \
	  unfused=$$(folder_of fastatomstruct_xla_cpu)/libpjrt_cpu.so; \
	  fused=$$(folder_of flashlift)/lib/pjrt_c_api_flashlift-cpu_plugin.so; \
	  env -i FLASHLIFT_LOG=info FLASHLIFT_PJRT_PLUGIN="$$unfused" \
	  $(BUILD)/client $(BUILD)/minilm/minilm.mlir "$$fused" "$$unfused" --inputs $(BUILD)/minilm/minilm.bin --tolerance 1e-5

test: build ## build everything and run all tests
	@echo "==> C++ tests"
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j$(JOBS) -LE every_kernel
	@echo "==> Python tests"
	@$(VENV)/bin/python -m pytest -q -n $(JOBS) --maxprocesses=8 --dist=worksteal tests/python

test-torch-versions: build ## run the PyTorch tests with each supported version (a GB each, an hour)
	@$(VENV)/bin/python scripts/test_versions.py torch $(BUILD)

OTHER_PYTHON ?=
test-jax-versions: build ## run the JAX and lifting tests with each supported version; OTHER_PYTHON=python3.12 for those that need it
	@$(VENV)/bin/python scripts/test_versions.py jax $(BUILD) $(if $(OTHER_PYTHON),--python $(OTHER_PYTHON))

JAX_SOURCE ?=
test-jax-users: build ## run Flax's nnx with Flashlift's attention; with JAX_SOURCE=CHECKOUT also JAX's own tests of its attention, fused
	@$(VENV)/bin/python scripts/test_jax_users.py $(BUILD) $(if $(JAX_SOURCE),--jax-source $(JAX_SOURCE))

test-frameworks: build ## fuse models of Flax, Equinox, Haiku, Keras and transformers; writes the table in docs/lifting.md (minutes)
	@$(VENV)/bin/python scripts/test_frameworks.py $(BUILD) --write docs/lifting.md

test-kernels: build ## compile the CUDA kernels of every configuration; make test compiles a third of them
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j$(JOBS) -L every_kernel

SOAK_COUNT ?= 10000
soak: build ## compare SOAK_COUNT (10000) random problems with the oracle, forward and backward, for each instruction set (hours)
	@scripts/soak.sh $(BUILD) $(SOAK_COUNT)

LIFT_COUNT ?= 10000
soak-lifting: build ## fuse LIFT_COUNT (10000) random modules and compare them with XLA (hours)
	@$(VENV)/bin/python tests/corpus/soak.py --count $(LIFT_COUNT)

bench: build ## compare the speed of Flashlift, XLA, torch and flex_attention on this machine (minutes)
	@$(VENV)/bin/python benchmarks/bench.py
	@$(VENV)/bin/python benchmarks/backward_memory.py

bench-peers: build ## the same with ONNX Runtime, OpenVINO, vLLM and zentorch, if build/venv has them
	@$(VENV)/bin/python benchmarks/peers.py

build: $(SETUP)/configured ## build all, build/bin/flashlift and the Python package in build/venv
	@echo "==> building in $(BUILD)/"
	@cmake --build $(BUILD) -- $(NINJA_FLAGS)
	@cmake --install $(BUILD) --component python \
	  --prefix "$$($(VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('platlib'))")" >$(BUILD)/install.log

# --- packages: one library with everything, LLVM and MLIR within ---

wheel: setup $(SETUP)/python-package ## make a Python wheel that needs only numpy, in dist/
	@scripts/setup_system.sh scripts/debian-packages-package.txt
	@echo "==> building the wheel (linking LLVM takes a minute)"
	@$(VENV)/bin/python -m pip wheel . --quiet --no-deps --no-build-isolation --config-settings=build-dir=build-package/wheel \
	  --wheel-dir build-package/made
	@mkdir -p dist && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python -m auditwheel repair --only-plat --plat manylinux_2_35_$$(uname -m) \
	  --wheel-dir dist build-package/made/flashlift-*.whl

KERNEL_ARCHITECTURES ?= 80,86,89,90,100,120
wheel-kernels: build $(SETUP)/python-package ## make a wheel of machine code for NVIDIA GPUs: plain and causal attention (minutes)
	@echo "==> compiling kernels for $(KERNEL_ARCHITECTURES)"
	@rm -rf $(BUILD)/kernels && mkdir -p $(BUILD)/kernels dist && cp packaging/kernels/pyproject.toml $(BUILD)/kernels/
	@cmake -DCLI=$(BUILD)/bin/flashlift -DARCHITECTURES=$(KERNEL_ARCHITECTURES) \
	  -DNVRTC="$$($(VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")"/nvidia/cu13/lib/libnvrtc.so.13 \
	  -DFOLDER="$(CURDIR)/$(BUILD)/kernels/flashlift/lib/flashlift_kernels" -P cmake/PackageKernels.cmake
	@$(VENV)/bin/python -m pip wheel $(BUILD)/kernels --quiet --no-deps --no-build-isolation --wheel-dir dist

test-wheel: wheel ## test the wheel in a bare environment, and with PyTorch and JAX
	@$(VENV)/bin/python scripts/test_wheel.py dist/flashlift-*_$$(uname -m).whl $(BUILD)

# auditwheel lets only tags of this machine's processor be named; test_wheel_aarch64.py checks the one that it chooses.
wheel-aarch64: setup $(SETUP)/python-package ## cross-compile the wheel for 64-bit Arm, in dist/
	@scripts/setup_system.sh scripts/debian-packages-package.txt scripts/debian-packages-aarch64.txt
	@scripts/setup_aarch64.sh build-aarch64/system wheel
	@echo "==> building the wheel for 64-bit Arm"
	@_PYTHON_HOST_PLATFORM=linux-aarch64 $(VENV)/bin/python -m pip wheel . --quiet --no-deps --no-build-isolation \
	  --config-settings=build-dir=build-aarch64/wheel --wheel-dir build-aarch64/made \
	  --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$(CURDIR)/cmake/aarch64.cmake"
	@mkdir -p dist && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python -m auditwheel repair --only-plat --plat auto \
	  --wheel-dir dist build-aarch64/made/flashlift-*.whl

test-wheel-aarch64: wheel-aarch64 ## run the wheel for 64-bit Arm with numpy and NVRTC, under qemu-user
	@$(VENV)/bin/python scripts/test_wheel_aarch64.py dist/flashlift-*_aarch64.whl build-aarch64

dist: setup ## make the source distribution, in dist/
	@$(VENV)/bin/python -c "from scikit_build_core.build import build_sdist; build_sdist('dist')"

build-package: setup
	@scripts/setup_system.sh scripts/debian-packages-package.txt
	@scripts/configure.sh package build-package $(VENV)
	@cmake --build build-package -- $(NINJA_FLAGS)

PREFIX ?= /usr/local
install: build-package ## install programs, libraries, headers and CMake's package into PREFIX (/usr/local), relocatable
	@cmake --install build-package --prefix $(subst $() ,\ ,$(PREFIX))

deb: build-package ## make a Debian package, in dist/
	@mkdir -p dist && cd build-package && cpack -B deb >deb.log || { cat deb.log; exit 1; }
	@cp build-package/deb/*.deb dist/

test-packages: wheel deb ## test the wheel and the Debian package in bare Debian 12 and 13, Ubuntu 22.04 and 24.04 (root)
	@scripts/setup_system.sh scripts/debian-packages-systems.txt
	@$(VENV)/bin/python scripts/test_packages.py $(BUILD) dist/flashlift_*.deb dist/flashlift-*_$$(uname -m).whl

test-dist: dist ## build the source distribution in a bare environment and test the result (minutes)
	@scripts/setup_system.sh scripts/debian-packages-package.txt
	@$(VENV)/bin/python scripts/test_dist.py $(BUILD) dist/flashlift-*.tar.gz

# LLVM's headers poison memory that LLVM's shared library, which is built without the sanitizers, then uses.
asan: setup ## run the C++ tests under AddressSanitizer and UBSan
	@scripts/configure.sh asan build-asan $(VENV)
	@cmake --build build-asan -- $(NINJA_FLAGS)
	@ASAN_OPTIONS=allow_user_poisoning=0 ctest --test-dir build-asan --output-on-failure --no-tests=error -j$(JOBS)

# oneTBB is not instrumented, and its waits look like races: these tests bring threads of their own.
tsan: setup ## run the tests of threads, caches and determinism under ThreadSanitizer
	@scripts/configure.sh tsan build-tsan $(VENV)
	@cmake --build build-tsan --target concurrency_test -- $(NINJA_FLAGS)
	@build-tsan/bin/concurrency_test

# Everything without LLVM, MLIR and a GPU: the portable kernels, whose programs are interpreted.
AARCH64_TESTS := support_test score_test problem_test visits_test plan_test cpu_test runtime_test random_forward_test \
  random_backward_test
test-aarch64: system ## cross-compile for 64-bit Arm, and run the CPU's tests under qemu-user (minutes)
	@scripts/setup_system.sh scripts/debian-packages-aarch64.txt
	@scripts/setup_aarch64.sh build-aarch64/system tests
	@scripts/configure.sh aarch64 build-aarch64 $(VENV)
	@cmake --build build-aarch64 --target $(AARCH64_TESTS) -- $(NINJA_FLAGS)
	@ctest --test-dir build-aarch64 --output-on-failure --no-tests=error -j$(JOBS) \
	  -R "^($$(echo $(AARCH64_TESTS) | tr ' ' '|'))$$"

hostile: build ## attack the interfaces with malicious input (minutes); a short run is in make test
	@$(VENV)/bin/python tests/hostile/run.py

plugins: build ## run a folder of StableHLO cases, CORPUS=FOLDER, through PyPI's PJRT plugins, fused and not (minutes)
	@test -n "$(CORPUS)" || { echo "error: name a folder of cases: make plugins CORPUS=FOLDER"; exit 1; }
	@$(VENV)/bin/python tests/corpus/plugins.py $(CORPUS)

FUZZ_SECONDS ?= 600
fuzz: setup ## run each fuzzer for FUZZ_SECONDS (600)
	@scripts/configure.sh fuzz build-fuzz $(VENV)
	@cmake --build build-fuzz --target fuzzers -- $(NINJA_FLAGS)
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

words: build ## generate docs/problem.md's tables and the fuzzer's dictionary from the tables of words
	@$(BUILD)/bin/write_words . --write

docs: build $(SETUP)/python-docs ## build the documentation site in build/site and check its links; it works without a network
	@$(VENV)/bin/python -m mkdocs build --quiet
	@echo "open $(BUILD)/site/index.html"

gallery: build ## generate docs/gallery from scripts/gallery
	@$(VENV)/bin/python scripts/gallery/pages.py

test-gallery: build ## run every block of the gallery in PyTorch, JAX and C++, and compare
	@$(VENV)/bin/python -m pytest -q -m "gallery or not gallery" tests/python/test_gallery.py

format: lint-system $(SETUP)/python-lint ## format the C++ and Python sources
	@scripts/format.sh
	@$(VENV)/bin/python -m ruff format --quiet .

lint: lint-system $(SETUP)/python-lint build ## check format, layer order, Python (ruff, mypy) and clang-tidy
	@scripts/lint.sh $(BUILD)

lint-format: lint-system $(SETUP)/python-lint ## check format, layer order and Python, without clang-tidy
	@scripts/lint.sh --without-tidy $(BUILD)

lint-changed: lint-system $(SETUP)/python-lint build ## the same, with clang-tidy over what this branch changes
	@scripts/lint.sh --changed $(BUILD)

clean: ## remove the builds, but keep the Python environment
	@find $(BUILD) -mindepth 1 -maxdepth 1 ! -name venv ! -name setup -exec rm -rf {} +
	@rm -rf build-debug build-asan build-tsan build-fuzz build-aarch64 build-package

# --- set-up ---

setup: system $(SETUP)/python

$(SETUP):
	@mkdir -p $@

# Asked on every call: it takes milliseconds, and a package may be gone since.
system: | $(SETUP)
	@scripts/setup_system.sh scripts/debian-packages.txt

lint-system: system
	@scripts/setup_system.sh scripts/debian-packages-lint.txt

$(SETUP)/python: scripts/setup_python.sh $(wildcard scripts/requirements*.txt) | system
	@scripts/setup_python.sh $(VENV)
	@touch $@

$(SETUP)/python-package: scripts/requirements-package.txt $(SETUP)/python
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $< >>$(SETUP_LOG) 2>&1 || \
	  { echo "error: pip install -r $< failed; see $(SETUP_LOG)"; exit 1; }
	@touch $@

$(SETUP)/python-lint: scripts/requirements-lint.txt $(SETUP)/python
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $< >>$(SETUP_LOG) 2>&1 || \
	  { echo "error: pip install -r $< failed; see $(SETUP_LOG)"; exit 1; }
	@touch $@

$(SETUP)/python-docs: scripts/requirements-docs.txt $(SETUP)/python
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $< >>$(SETUP_LOG) 2>&1 || \
	  { echo "error: pip install -r $< failed; see $(SETUP_LOG)"; exit 1; }
	@touch $@

# CMake runs itself again when a CMakeLists.txt has changed; this is for the first time only.
$(SETUP)/configured: CMakePresets.json $(SETUP)/python
	@scripts/configure.sh release $(BUILD) $(VENV)
	@touch $@
