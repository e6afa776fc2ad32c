# Offshoot. `make help` lists the targets; `make demo` needs nothing but Debian, make and network.

DIRS  ?= base kernels spec text engine drafts server bench
JOBS  ?= $(shell nproc)
Q     := $(if $(V),,@)# make V=1 shows the commands
comma := ,

# Each set of sanitizers (make test SAN=address,undefined) has its own build folder.
BUILD ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))

ifeq ($(origin CC),default)
CC := gcc
endif

PACKAGES := libevent_core libevent_extra jansson libpcre2-8 libutf8proc libxxhash
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
            -Wformat=2 -Wundef -Wwrite-strings -Wpointer-arith -Wimplicit-fallthrough
PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null)
# Said at once, not by the linker after minutes. `make demo` and `make deps` install them first.
ifeq ($(PKG_LIBS),)
ifneq ($(filter all test bench dist gpu-pack clients page-check $(BUILD)/%,$(or $(MAKECMDGOALS),all)),)
$(error pkg-config does not find $(strip $(foreach p,$(PACKAGES),$(shell pkg-config $p 2>/dev/null || echo $p))); see 'make deps')
endif
endif
CPPFLAGS += -I. -D_GNU_SOURCE $(PKG_CFLAGS)
# No contraction and no fast-math: a result may not depend on what the compiler fused.
# With sanitizers -O2 takes gcc several times as long for the kernels; a report needs lines alone.
CFLAGS   ?= $(if $(SAN),-O1 -g1,-O2 -g)
override CFLAGS += -std=c11 -ffp-contract=off -pthread $(WARNINGS) $(if $(CI)$(WERROR),-Werror)
override CFLAGS += $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
override LDFLAGS += -Wl,--build-id
LDLIBS   += $(PKG_LIBS) $(CUDA_LIBS) -lm

# The fast CPU kernels are compiled once per instruction set; the backend picks when it is opened.
ISAS := plain
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
ifneq ($(filter aarch64-%,$(MACHINE)),)
ISAS += dotprod
FLAGS_dotprod := -march=armv8.2-a+dotprod
endif
ifneq ($(filter x86_64-%,$(MACHINE)),)
ISAS += avx2 avx512 vnni amx
FLAGS_avx2   := -mavx2 -mfma -mf16c
FLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
FLAGS_vnni   := $(FLAGS_avx512) -mavx512vnni
FLAGS_amx    := $(FLAGS_vnni) -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8
endif

# CUDA is found (12.8 or later), never required: CUDA=0 builds for the CPU alone. For a GPU that is
# not in the list the driver compiles the intermediate code of compute_80.
ifndef CUDA
CUDA := $(shell set -- $$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\),.*/\1 \2/p'); \
                test "$${1:-0}" -gt 12 -o "$${1:-0}" -eq 12 -a "$${2:-0}" -ge 8 && echo 1 || echo 0)
endif
ifeq ($(CUDA),1)
CUDA_ARCHS ?= 80 89 90a 120
CUDA_HOME  ?= $(abspath $(dir $(realpath $(shell command -v nvcc)))..)
NVCCFLAGS  := -std=c++17 -O3 -lineinfo -fmad=false -Xfatbin=-compress-all --compress-mode=size
NVCCFLAGS  += -Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-threadsafe-statics -I.
NVCCFLAGS  += $(foreach a,$(CUDA_ARCHS),-gencode=arch=compute_$(a),code=sm_$(a))
NVCCFLAGS  += $(if $(filter 80,$(CUDA_ARCHS)),-gencode=arch=compute_80$(comma)code=compute_80)
CPPFLAGS   += -isystem $(CUDA_HOME)/include
CUDA_LIBS  := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
endif

ISA_SRC  := $(if $(filter kernels,$(DIRS)),$(filter-out kernels/backend_cpu.c,$(wildcard kernels/*_cpu.c)))
CU       := $(wildcard $(DIRS:%=%/*.cu))
ON_CUDA  := $(addprefix kernels/,device_cuda.c cuda_graphs.c upload_ring.c cublaslt.c)
NOT_HERE := $(if $(filter 1,$(CUDA)),kernels/device_none.c,$(ON_CUDA))
SRC      := $(filter-out $(ISA_SRC) $(NOT_HERE),$(wildcard $(DIRS:%=%/*.c)) $(MORE))
OBJ      := $(SRC:%.c=$(BUILD)/%.o) $(if $(filter 1,$(CUDA)),$(CU:%.cu=$(BUILD)/%.cuda.o)) $(foreach isa,$(ISAS),$(ISA_SRC:%.c=$(BUILD)/%.$(isa).o))
OBJ      += $(BUILD)/server/page_files.o
LIB      := $(BUILD)/liboffshoot.a
TESTS    := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/test_*.c))
TEST_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out tests/test_%.c,$(wildcard tests/*.c)))
TEST_LIB := $(BUILD)/tests/libhelpers.a
# The GPU's kernels, compiled for the host too: tests run them there, a block's threads as fibers.
CU_TEST  := $(wildcard tests/*.cu)
TEST_OBJ += $(patsubst %.cu,$(BUILD)/%.simt.o,$(CU) $(CU_TEST))
CXXFLAGS := $(filter-out -std=c11 -Wpedantic -Wstrict-prototypes -Wmissing-prototypes,$(CFLAGS))
CXXFLAGS += -x c++ -std=c++17 -fno-exceptions -fno-rtti

LINTED   := main.c $(filter-out $(NOT_HERE),$(wildcard $(DIRS:%=%/*.c) tests/*.c tests/fuzz/*.c))
FORMATTED = $(LINTED) $(CU) $(CU_TEST) $(wildcard $(DIRS:%=%/*.h) tests/*.h tests/fuzz/*.h tests/ptx/*.[ch] tests/amx/*.[ch] tests/gpu/*.c tests/gpu/*.cu)

.PHONY: FORCE all demo check test ptx-check amx-check arm-check dist gpu-pack gpu-check gpu-check-long gpu-bench clients page-check fuzz fuzzers lint lint-text bench deps deps-check format clean help
.DELETE_ON_ERROR:
.SECONDARY:

all: $(BUILD)/offshoot ## build/offshoot (the default)
	@:

# A GPU's kernels take minutes to compile: not for a machine without one, unless CUDA=1 asks for them.
demo: deps ## install what building needs, build, and answer one question with the demo model
	@$(MAKE) --no-print-directory -j$(JOBS) all \
	    $(if $(wildcard /dev/nvidiactl /dev/dxg)$(filter command environment,$(origin CUDA)),,CUDA=0)
	$(BUILD)/offshoot chat --model models/demo --tools models/demo/tools.json --thinking off \
	    --show-draft on --color on --temperature 0 --tree-nodes 4 \
	    "I want to find an Italian restaurant in San Jose"

check: deps-check ## install what is needed, lint, run all tests; ends with the count
	@$(MAKE) --no-print-directory -j$(JOBS) all lint $(TESTS) fuzzers
	@tests/run_tests.sh $(TESTS) $(if $(HAS_FUZZER),$(FUZZERS))

test: $(BUILD)/offshoot $(TESTS) ## all tests; SAN=address,undefined or SAN=thread for sanitizers
	@$(if $(SAN),TEST_TIMEOUT=3600) tests/run_tests.sh $(TESTS)

ptx-check: deps-check ## what nvcc makes of the kernels, run on the host; PTX_TESTS="round terms" for some
	@$(if $(PTX_RACES),OFFSHOOT_PTX_RACES=$(PTX_RACES)) tests/ptx/run.sh $(PTX_TESTS)

amx-check: deps-check ## AMX's kernels with the tile unit as functions, where AVX-512 is; AMX_TESTS="linear moe" for some
	@SAN=$(SAN) tests/amx/run.sh $(AMX_TESTS)

arm-check: ## the program and its tests for 64-bit Arm, run by QEMU; ARM_TESTS="linear moe" for some, "all"
	@tests/arm/run.sh $(ARM_TESTS)

clients: $(BUILD)/offshoot ## clients and routers from PyPI (openai, lm-eval, ...) and the server; needs network
	@tests/install_deps.sh clients
	@OFFSHOOT_BINARY=$(BUILD)/offshoot tests/clients/run.sh

page-check: $(BUILD)/offshoot ## the built-in page in a headless Chromium
	@tests/install_deps.sh page
	@OFFSHOOT_BINARY=$(BUILD)/offshoot tests/page/run.sh

# Objects of their own, and of kernels/ the memory alone: no target computes.
FUZZERS := $(patsubst %.c,build-fuzz/%,$(wildcard tests/fuzz/fuzz_$(or $(FUZZ),*).c))
FUZZING := CC=clang BUILD=build-fuzz SAN=fuzzer-no-link,address,undefined CFLAGS="-O1 -g"
FUZZING += DIRS="base text engine server" MORE=kernels/host_memory.c CUDA=0
HAS_FUZZER = $(shell tests/run_fuzz.sh probe && echo yes)

fuzz: deps-check ## libFuzzer targets, SECONDS=600 each; FUZZ=config picks one
	@$(MAKE) --no-print-directory -j$(JOBS) fuzzers
	$(if $(HAS_FUZZER),@tests/run_fuzz.sh $(or $(SECONDS),600) $(FUZZERS))
fuzzers:
	$(if $(HAS_FUZZER),@$(MAKE) --no-print-directory $(if $(V),,-s) $(FUZZING) \
	    $(or $(FUZZERS),$(error there is no tests/fuzz/fuzz_$(FUZZ).c)), \
	    @echo "  no clang that links libFuzzer: not fuzzed")

bench: all ## acceptance and speed on the demo model
	$(BUILD)/offshoot bench accept --model models/demo --thinking off --temperature 0

# Formatters and analyzers judge by version: these are the ones that the code is kept clean under.
LINT_CLANG := $(findstring version 14.,$(shell clang-format --version 2>/dev/null))
LINT_GCC   := $(filter 12,$(firstword $(subst ., ,$(shell gcc -dumpversion 2>/dev/null))))

# The libraries inside, the C library and the NVIDIA driver outside. Tests of the GPU lie beside it,
# with cmocka, for machines that have neither our libraries nor a way to get them.
DIST_LIBS  = -Wl,-Bstatic $(PKG_LIBS) -Wl,-Bdynamic $(CUDA_LIBS) -lm -static-libgcc -s
GPU_TESTS := $(patsubst %,$(BUILD)/dist/test_%,linear rows moe terms recurrence fold mixer attention sample \
             sample_law sample_cuts prefill round golden tree_pass device_round device_tiers gpu)
CUPTI := $(if $(filter 1,$(CUDA)),$(firstword $(patsubst %/cupti.h,%,$(wildcard $(CUDA_HOME)/include/cupti.h \
             $(CUDA_HOME)/extras/CUPTI/include/cupti.h))))
dist: $(BUILD)/dist/offshoot $(if $(filter 1,$(CUDA)),$(GPU_TESTS) $(BUILD)/dist/racy) $(if $(CUPTI),$(BUILD)/dist/gpu_trace.so) ## one portable binary, build/dist/offshoot, libraries inside
	@git describe --always --dirty >$(BUILD)/dist/commit 2>/dev/null || true
	@ls -l $(BUILD)/dist/offshoot
gpu-pack: dist ## build/dist.tar.xz, for gpu-check on a machine that cannot build
	tar -C $(BUILD) -cJf $(BUILD)/dist.tar.xz dist
gpu-check: ## all checks that need a GPU, and a report; needs build/dist or what building needs
	@BUILD=$(BUILD) tests/gpu_check.sh short $(REPORT)
gpu-check-long: ## the same with racecheck and 2,000 steps
	@BUILD=$(BUILD) tests/gpu_check.sh long $(REPORT)
gpu-bench: ## speed on a GPU, of published shapes with random weights (a report, within 9 minutes)
	@BUILD=$(BUILD) bench/gpu_bench.sh $(REPORT)

lint: lint-text $(if $(and $(LINT_CLANG),$(LINT_GCC)),$(LINTED:%.c=$(BUILD)/lint/%.ok) $(patsubst %,$(BUILD)/lint/%.ok,$(CU) $(CU_TEST))) ## format, includes, analyzers
lint-text:
	@tests/lint_includes.sh
	$(if $(LINT_CLANG),@clang-format --dry-run -Werror $(FORMATTED),@echo "  clang-format is not 14: format not checked")
	$(if $(and $(LINT_CLANG),$(LINT_GCC)),,@echo "  not gcc 12 and clang 14: analyzers not run")

deps: ## install what building needs (apt-get; does nothing when all is there)
	@tests/install_deps.sh build
deps-check:
	@tests/install_deps.sh check

format: ## rewrite the sources as clang-format likes them
	clang-format -i $(FORMATTED)

clean: ## remove all build folders
	rm -rf build build-*

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile | awk -F': ' '{printf "make %-14s %s\n", $$1, $$2}'

$(BUILD)/offshoot: $(BUILD)/main.o $(LIB)
	@echo "  LD $@"
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Archives, so that a test links only what it uses. q, not r: two folders may each have an object
# of the same name.
$(LIB): $(OBJ) $(BUILD)/objects
$(TEST_LIB): $(TEST_OBJ)
$(LIB) $(TEST_LIB):
	@rm -f $@ && ar qcs $@ $(filter %.o,$^)

# Of which objects the library consists: other ones with CUDA=0.
$(BUILD)/objects: FORCE
	@mkdir -p $(@D) && echo '$(OBJ)' | cmp -s - $@ || echo '$(OBJ)' >$@
FORCE:

$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(TEST_LIB) $(LIB)
	@echo "  LD $@"
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(BUILD)/dist/offshoot: $(BUILD)/main.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(DIST_LIBS)
LAUNCHED := $(if $(filter 1,$(CUDA)),$(BUILD)/tests/gpu/launched.o)
LAUNCHED_WRAP := $(if $(LAUNCHED),-Wl$(comma)--wrap=cudaLaunchKernelExC)
$(BUILD)/dist/test_%: $(BUILD)/tests/test_%.o $(LAUNCHED) $(TEST_LIB) $(LIB) | $(BUILD)/dist/libcmocka.so.0
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(LAUNCHED_WRAP) -Wl,-rpath,'$$ORIGIN' -o $@ $^ -lcmocka $(DIST_LIBS)
$(BUILD)/dist/libcmocka.so.0:
	@mkdir -p $(@D)
	@cp -L $$($(CC) -print-file-name=libcmocka.so) $@
# What racecheck must find (tests/gpu_check.sh).
$(BUILD)/dist/racy: tests/gpu/racy.cu
	@mkdir -p $(@D)
	@echo "  NVCC $@"
	$(Q)nvcc $(NVCCFLAGS) -o $@ $<
# When each kernel ran, where the toolkit has CUPTI (bench/gpu_trace).
$(BUILD)/dist/gpu_trace.so: bench/gpu_trace/trace.c
	@mkdir -p $(@D)
	@echo "  CC $@"
	$(Q)$(CC) -O2 -std=c11 -Wall -Wextra -D_GNU_SOURCE -isystem $(CUPTI) -isystem $(CUDA_HOME)/include -fPIC -shared \
	    -o $@ $< -L$(CUPTI)/../lib64 -L$(CUDA_HOME)/lib64 -lcupti

FUZZ_HELP := $(patsubst %.c,$(BUILD)/%.o,$(filter-out tests/fuzz/fuzz_%.c,$(wildcard tests/fuzz/*.c)))
FUZZ_WRAP := -Wl,--wrap=mapped_file_open,--wrap=mapped_file_open_up_to,--wrap=mapped_file_close,--wrap=mapped_file_forget,--wrap=file_is_in
$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(FUZZ_HELP) $(LIB)
	@echo "  LD $@"
	$(Q)$(CC) $(CFLAGS) -fsanitize=fuzzer $(LDFLAGS) $(FUZZ_WRAP) -o $@ $^ $(LDLIBS)

BINARY := -DOFFSHOOT_BINARY='"$(BUILD)/offshoot"'
# cmocka 2 would have other names than those that cmocka 1 knows.
$(BUILD)/tests/%.o: CPPFLAGS += $(BINARY) -Wno-deprecated-declarations

define ISA_RULE
$(BUILD)/kernels/%_cpu.$(1).o: kernels/%_cpu.c
	@mkdir -p $$(@D)
	@echo "  CC $$@"
	$$(Q)$$(CC) $$(CPPFLAGS) $$(CFLAGS) -DISA=$(1) $$(FLAGS_$(1)) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call ISA_RULE,$(isa))))

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC $@"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# The built-in page lies in the binary: bytes, and a table of them by name (server/page.h).
PAGE := $(wildcard server/page/*.html server/page/*.css server/page/*.js server/page/*.svg)
$(BUILD)/server/page_files.c: $(PAGE) server/page Makefile
	@mkdir -p $(@D)
	$(Q){ echo '#include "server/page.h"'; \
	for f in $(PAGE); do \
	    echo "static const unsigned char $$(basename $$f | tr . _)[] = {"; \
	    od -An -v -tx1 $$f | sed 's/ \(..\)/0x\1,/g'; \
	    echo '};'; \
	done; \
	echo 'const PageFile page_files[] = {'; \
	for f in $(notdir $(PAGE)); do \
	    v=$$(echo $$f | tr . _); \
	    echo "    {\"$$f\", $$v, sizeof $$v},"; \
	done; \
	echo '    {0, 0, 0},'; \
	echo '};'; } >$@
$(BUILD)/server/page_files.o: $(BUILD)/server/page_files.c server/page.h
	@echo "  CC $@"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/%.cuda.o: %.cu
	@mkdir -p $(@D)
	@echo "  NVCC $@"
	$(Q)nvcc $(NVCCFLAGS) -MMD -MP -MF $@.d -c -o $@ $<

$(BUILD)/%.simt.o: %.cu
	@mkdir -p $(@D)
	@echo "  CXX $@"
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/lint/tests/%.ok: CPPFLAGS += $(BINARY) -include tests/analyzer.h

# One stamp for both analyzers, so that only what changed is looked at again. gcc 12 loses track of
# arrays filled in a loop and of vector types; clang's analyzer looks for the same.
ANALYZE := -fanalyzer -Wno-analyzer-use-of-uninitialized-value -Wno-analyzer-shift-count-overflow
$(BUILD)/lint/%.ok: %.c .clang-tidy
	@mkdir -p $(@D)
	@echo "  LINT $<"
	$(Q)gcc $(CPPFLAGS) $(CFLAGS) -DISA=plain -Werror $(ANALYZE) -MMD -MP -MT $@ -MF $@.d -c \
	    -o /dev/null $<
	$(Q)clang-tidy --quiet $< -- $(CPPFLAGS) $(WARNINGS) -std=c11 -DISA=plain 2>$@.log || (cat $@.log; false)
	@touch $@

# GPU sources as the host sees them; warnings are the compiler's, when it builds them for the tests.
# The path analyzer knows nothing of threads that fill each other's shared memory.
$(BUILD)/lint/%.cu.ok: %.cu $(wildcard kernels/*.h) .clang-tidy
	@mkdir -p $(@D)
	@echo "  LINT $<"
	$(Q)clang-tidy --quiet --checks=-clang-analyzer-* $< -- $(CPPFLAGS) -x c++ -std=c++17 2>$@.log || (cat $@.log; false)
	@touch $@

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
