# A thin front to CMake's presets. `make` lists the targets; everything is built under build/.
# A second run does only what is not done yet.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
# Tests that are run at once under a sanitizer: one more than cores, because many wait half of their time.
TEST_JOBS ?= $(shell expr $(JOBS) + 1)
CLANG_FORMAT ?= clang-format-14
BENCH_FLAGS ?=
# Which of the benchmarks run: --benchmark_filter=..., quoted for the shell.
BENCH_FILTER ?=
# The tree that `bench` and `install` use: release; cuda, which is the same with more targets; or dev, to
# see that they work.
TREE ?= release
MODEL ?=
SERVE_FLAGS ?=
# Those of Google Benchmark are for quire_bench alone.
MODEL_BENCH_FLAGS = $(filter-out --benchmark_%,$(BENCH_FLAGS))
# Tokens of a prompt of `make bench`.
BENCH_LENGTH ?= 128
# At which a sparse model is measured beside a dense one.
CONTEXTS = 1024,2048,4096,8192,16384,32768,65536,131072
SOURCES = $(shell find src bench examples -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')

.DELETE_ON_ERROR:
.PHONY: help packages quire serve built-dev built-asan built-tsan test test-clients test-guidellm test-vllm-bench asan tsan load soak fuzz bench bench-contexts eval-matrix cuda test-cuda sanitize-cuda bench-cuda install format format-check tidy clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

quire: build/release/.configured  ## build the command line, build/release/quire
	cmake --build --preset release -j $(JOBS) --target quire

serve: quire  ## serve the bundled model, or MODEL=folder, on http://127.0.0.1:8080
	build/release/quire serve $(MODEL) $(SERVE_FLAGS)

# What `make test`, `make asan` and `make tsan` need and run, installed and built by itself: .ci/run does
# that for one while it runs another.
packages: build/packages.installed build/packages-clang.installed build/browser.tried

built-dev: build/dev/.configured build/browser.tried
	cmake --build --preset dev -j $(JOBS)

built-asan: build/asan/.configured
	cmake --build --preset asan -j $(JOBS)

built-tsan: build/tsan/.configured
	cmake --build --preset tsan -j $(JOBS) --target $(THREADED)

test: built-dev  ## install what is missing, build, run every test
	ctest --preset dev -j $(JOBS)

# Real clients, of the versions that tools/clients.txt names. Here a test that is skipped has failed.
CLIENTS = build/clients/bin/python
test-clients: build/dev/.configured build/clients/.installed  ## real clients (openai, anthropic, lm-eval, schemathesis) against the server
	cmake --build --preset dev -j $(JOBS) --target quire
	$(CLIENTS) src/serve/client_test.py build/dev/quire src/testing/testdata/tiny_chat build/clients
	$(CLIENTS) src/serve/anthropic_test.py build/dev/quire src/testing/testdata/tiny_chat
	$(CLIENTS) src/serve/lm_eval_test.py build/dev/quire models/quire-grade-school
	$(CLIENTS) src/serve/schemathesis_test.py build/dev/quire src/testing/testdata/tiny_chat

# By themselves: they bring PyTorch with all of CUDA.
test-guidellm: build/dev/.configured build/clients-guidellm/.installed  ## GuideLLM's benchmark against the server (installs 6 GB)
	cmake --build --preset dev -j $(JOBS) --target quire
	build/clients-guidellm/bin/python src/serve/guidellm_test.py build/dev/quire models/quire-grade-school

test-vllm-bench: build/dev/.configured build/clients-vllm/.installed  ## vLLM's benchmark against the server (installs 9 GB)
	cmake --build --preset dev -j $(JOBS) --target quire
	build/clients-vllm/bin/python src/serve/vllm_bench_test.py build/dev/quire models/quire-grade-school

# Without those that are about the build, or put faults back; where CI samples, without those that start the
# program again and again, whose ways through it the other tests take too, and load, which `make load` has.
SAMPLED = $(filter ON,$(QUIRE_SAMPLE))
asan: built-asan  ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	ctest --preset asan -j $(TEST_JOBS) -LE 'seeds|compile_fail|repo$(if $(SAMPLED),|commands|client|slow)'

# What runs loops on threads, or threads of its own; the server as a whole runs under `make load`.
THREADED = device_test attn_test interop_test kernels_test engine_test runner_test \
  engine_invariants_test allocation_count_test \
  $(if $(SAMPLED),,model_test draft_test runner_invariants_test hf_test invariants_test http_test \
  textgen_test server_test)
EMPTY :=
THREADED_REGEX = ^($(subst $(EMPTY) $(EMPTY),|,$(strip $(THREADED))))$$
# setarch -R: some kernels place mappings where ThreadSanitizer's shadow has to be.
tsan: built-tsan  ## the tests of what runs on threads, under ThreadSanitizer
	if setarch -R true 2>/dev/null; then run="setarch -R"; fi; \
	$$run ctest --preset tsan -j $(JOBS) -R '$(THREADED_REGEX)'

# 64 clients for two minutes with room for all, and for half a minute each with so little that sequences are
# preempted, without and with guesses.
LOAD_TEST = src/serve/load_test.py build/$(1)/quire src/testing/testdata/tiny_chat 120 $(1)
load: build/asan/.configured build/tsan/.configured  ## a longer load on the server, under each sanitizer
	cmake --build --preset asan -j $(JOBS) --target quire
	cmake --build --preset tsan -j $(JOBS) --target quire
	python3 $(call LOAD_TEST,asan)
	if setarch -R true 2>/dev/null; then run="setarch -R"; fi; $$run python3 $(call LOAD_TEST,tsan)

soak: quire  ## 20,000 requests, with cancels, bad bodies and slow readers; 15 minutes at most
	python3 src/serve/soak.py build/release/quire src/testing/testdata/tiny_chat

fuzz: build/fuzz/.configured  ## the fuzz targets, for a while each
	cmake --build --preset fuzz -j $(JOBS) --target quire_fuzzers
	ctest --preset fuzz -L fuzz -j $(JOBS)

bench: build/$(TREE)/.configured  ## the benchmarks (BENCH_FLAGS=--quick for a short run)
	cmake --build --preset $(TREE) -j $(JOBS) --target quire_bench quire_grammar_bench quire
	build/$(TREE)/bench/quire_bench $(BENCH_FLAGS) $(BENCH_FILTER)
	build/$(TREE)/bench/quire_grammar_bench $(filter --benchmark_%,$(BENCH_FLAGS)) $(BENCH_FILTER)
	build/$(TREE)/quire bench bench/models/dense_1b --load-format dummy --input-len $(BENCH_LENGTH) $(MODEL_BENCH_FLAGS)
	build/$(TREE)/quire bench bench/models/moe_1b --load-format dummy --input-len $(BENCH_LENGTH) $(MODEL_BENCH_FLAGS)

bench-contexts: quire  ## time per token over the context, with sparse attention and dense: build/release/contexts.svg
	build/release/quire bench bench/models/v32_slice --load-format dummy --quick --contexts $(CONTEXTS) --compare bench/models/v32_slice_dense --plot build/release/contexts.svg

eval-matrix: build/release/.configured build/dev/.configured  ## the bundled model's accuracy everywhere: docs/results/eval-matrix.md
	cmake --build --preset release -j $(JOBS) --target quire
	cmake --build --preset dev -j $(JOBS) --target quire
	tools/eval_matrix.py build/release/quire --faulty build/dev/quire $(if $(wildcard build/cuda/quire),--cuda build/cuda/quire) --output docs/results/eval-matrix.md

cuda: build/cuda/.configured  ## build/cuda/quire, and the tests and benchmarks of CUDA (needs nvcc 13)
	cmake --build --preset cuda -j $(JOBS) --target quire_cuda quire

test-cuda: build/cuda/.configured  ## the tests of the CUDA targets (skipped without a Hopper GPU)
	cmake --build --preset cuda -j $(JOBS) --target quire_cuda_tests
	ctest --preset cuda -L cuda

sanitize-cuda: build/cuda/.configured  ## the same under compute-sanitizer (ten minutes; needs a Hopper GPU)
	cmake --build --preset cuda -j $(JOBS) --target quire_cuda_tests
	tools/sanitize_cuda.py

bench-cuda: build/cuda/.configured  ## the benchmarks of the CUDA targets (needs a Hopper GPU)
	cmake --build --preset cuda -j $(JOBS) --target quire_cuda_benches quire
	build/cuda/bench/quire_cuda_bench $(BENCH_FLAGS)
	build/cuda/bench/quire_cuda_export_bench
	for model in v2_lite glm_4_7_flash v3_slice; do \
	  build/cuda/quire bench bench/models/$$model --load-format dummy --device cuda --batch 1,64 --input-len 1024 --contexts 1024 $(MODEL_BENCH_FLAGS) || exit 1; done
	build/cuda/quire bench bench/models/v32_slice --load-format dummy --device cuda --contexts $(CONTEXTS) --compare bench/models/v32_slice_dense --plot build/cuda/contexts.svg $(MODEL_BENCH_FLAGS)

install: build/$(TREE)/.configured  ## install quire, the libraries and headers (PREFIX=/usr/local)
	cmake --build --preset $(TREE) -j $(JOBS) --target quire_installed
	cmake --install build/$(TREE) --prefix "$(PREFIX)"

format: build/packages.installed  ## format the sources in place
	@$(CLANG_FORMAT) -i $(SOURCES)

format-check: build/packages.installed  ## fail if a source is not formatted
	@$(CLANG_FORMAT) --dry-run -Werror $(SOURCES)

tidy: build/packages-clang.installed build/dev/.configured  ## clang-tidy over the sources
	run-clang-tidy -quiet -p build/dev -j $(JOBS) '$(CURDIR)/(src|bench|examples)/'

clean:  ## remove build/
	rm -rf build

build/%.installed: tools/%.txt tools/install_packages.sh
	tools/install_packages.sh $<
	@mkdir -p build && touch $@

build/%/.installed: tools/%.txt
	python3 -m venv --clear build/$*
	build/$*/bin/pip install --disable-pip-version-check --quiet -r $<
	@touch $@

# The page is tested in a browser where one can be had.
build/browser.tried: tools/packages-browser.txt tools/install_packages.sh
	tools/install_packages.sh $< || echo "no browser: the test of the page will be skipped"
	@mkdir -p build && touch $@

# Ninja configures again by itself when a CMakeLists.txt changes, but not when a preset does.
build/%/.configured: CMakePresets.json | build/packages.installed
	cmake --preset $*
	@touch $@
build/asan/.configured build/tsan/.configured build/fuzz/.configured: | build/packages-clang.installed

.PRECIOUS: build/%/.configured build/%.installed
