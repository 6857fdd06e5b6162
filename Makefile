# What there is to do here; `make` alone lists it. Slow suites are targets of their own.

SHELL := /bin/bash
# The directory of the tree to work on in `make demo` (default: one that every machine has).
DATA ?=
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# What cargo builds with: release, or ci, which takes half of the time (Cargo.toml). All of `make test` uses ci.
export BUILD_PROFILE ?= release
TSUMUGI := $(TARGET_DIR)/$(BUILD_PROFILE)/tsumugi
# With ci the steps of `make test` share what they compile; by themselves they share it with `cargo test`.
SHARED := $(if $(filter ci,$(BUILD_PROFILE)),--profile ci)
UNIT := $(if $(SHARED),--workspace $(SHARED) --config tests/unit.toml)
# Where `make dist` puts what it makes (default: dist).
DIST ?=
# Seconds per fuzz target, and number of seeds of the simulation.
FUZZ_SECONDS ?= 60
SIM_SEEDS ?= 2000

.DEFAULT_GOAL := help
.PHONY: help deps build test demo fmt lint deny unit system test-kernel proof-kernel fuzz sim \
	sim-coverage clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

deps: ## install what is missing of tests/required (Debian; as root or with sudo)
	@tools/require --install

build: ## build the program, optimised
	cargo build --profile $(BUILD_PROFILE) --locked --package tsumugi

demo: build ## three nodes on this machine, one file system, checked (DATA=DIR for an input tree)
	@TSUMUGI=$(TSUMUGI) DATA="$(DATA)" tools/demo
	@TSUMUGI=$(TSUMUGI) tools/demo-eval

.PHONY: dist
dist: ## what is installed: a static program, a .deb, a container image, sums (DIST=DIR, default: dist)
	@tools/require musl || tools/require --install
	rustup target add x86_64-unknown-linux-musl
	tools/dist $(DIST)

test-dist: dist ## try it in a clean Debian root and in Podman (TWICE=1: make it twice, compare the bytes)
	tests/dist $(DIST)

test: export BUILD_PROFILE = ci
test: ## all that has to pass before a change goes in, with a table of times at the end
	@tools/run-steps \
		deps "$(MAKE) -s deps" \
		fmt "$(MAKE) -s fmt" \
		lint "$(MAKE) -s lint" \
		deny "$(MAKE) -s deny" \
		unit "$(MAKE) -s unit" \
		memory "$(MAKE) -s memory" \
		build "$(MAKE) -s build" \
		sim "SIM_SEEDS=300 tests/sim" \
		reduction tests/reduction \
		mutants "$(MAKE) -s mutants-sample" \
		system "$(MAKE) -s system" \
		kernel "tests/kernel/run $(TARGET_DIR)/ci/tsumugi"

# Has cargo doc use what `cargo clippy -- -D warnings` has checked, in place of checking all crates again without clippy.
CHECKED = RUSTC_WORKSPACE_WRAPPER="$$(rustc --print sysroot)/bin/clippy-driver" \
	CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__

fmt: ## check the formatting
	cargo fmt --all --check

lint: ## warnings of clippy, the compiler and rustdoc as errors; ruff for Python; links and messages of the docs; circles of modules
	tools/check-docs
	tools/check-modules
	tools/ruff
	cargo clippy --workspace --all-targets --locked $(SHARED) -- -D warnings
	$(CHECKED) RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --document-private-items --locked --quiet $(SHARED)

deny: ## check crates for licences, duplicates and sources
	tools/cargo-deny --locked check bans licenses sources

unit: ## the tests of all crates; one that fails runs again, alone
	tests/unit $(UNIT)

.PHONY: reference
reference: ## write docs/commands.md from the definitions of the commands
	cargo run --locked --quiet --package tsumugi -- manual $(TARGET_DIR)/manual
	cp $(TARGET_DIR)/manual/commands.md docs/commands.md

.PHONY: memory miri
memory: ## the unsafe code of crate reactor under Miri (where it is installed) and the thread sanitizer
	tools/memory-check

miri: ## Miri alone; exit status 77 where no toolchain has it
	tools/memory-check --miri

system: ## the tests of the whole system: real mounts, processes, network namespaces
	TSUMUGI=$(TSUMUGI) tests/run

test-kernel: build ## target and host against the Linux kernel's, long form
	tests/kernel/run --long $(TSUMUGI)

.PHONY: test-kernels
test-kernels: build ## a pool, a target and a union on the kernels of several Debian releases (5.10, 6.1, 6.12)
	tests/kernel/run --kernels $(TSUMUGI)

proof-kernel: ## prove the kernel tests with the kernel at both ends
	tests/kernel/run --proof

fuzz: ## fuzz every decoder (FUZZ_SECONDS each), then both ports, with address sanitizer
	FUZZ_SECONDS=$(FUZZ_SECONDS) fuzz/run

.PHONY: long
long: build ## the long forms of the system tests, for hours, at low priority
	TSUMUGI=$(TSUMUGI) tests/long

sim: ## the whole cluster in one process, from SIM_SEEDS seeds
	SIM_SEEDS=$(SIM_SEEDS) tests/sim

# Planted bugs: which (default: all), and how many seeds and seconds each may take.
MUTANTS ?=
MUTANT_SEEDS ?= 2000
MUTANT_SECONDS ?= 600
.PHONY: mutants mutants-sample
mutants: ## plant bugs, and run the simulation until it catches each (MUTANTS="NAME...")
	MUTANT_SEEDS=$(MUTANT_SEEDS) MUTANT_SECONDS=$(MUTANT_SECONDS) tests/mutants $(MUTANTS)

mutants-sample: ## plant bugs that seeds caught soon, and see them caught again
	tests/mutants --sample

sim-coverage: ## lines of the cores that the simulation runs (needs rustup's llvm-tools)
	tests/sim-coverage

# QUICK=1: the quick forms, which change no page. TIME: a limit for all, like 6h; the next call continues.
QUICK ?=
TIME ?=
.PHONY: performance
performance: build ## measure what docs/performance.md states and write its tables, for hours (QUICK=1: try all of it)
	TSUMUGI=$(TSUMUGI) tools/performance $(if $(QUICK),--quick) $(if $(TIME),--time $(TIME))

# The five studies, short ones first, as each may take its part of the time that is left.
STUDIES := io-stack-cpu nvmeof-depth-threads parallel-io nvmeof-container container-copyup
STUDIES_TIME ?= 29m
STUDIES_OUT ?= studies-quick
STUDIES_DATA ?= /var/tmp

.PHONY: studies-quick
studies-quick: build ## the quick forms of all five studies, in under 30 minutes, and one report
	$(TSUMUGI) eval studies --quick --resume --time $(STUDIES_TIME) --out $(STUDIES_OUT) \
		--data $(STUDIES_DATA) $(STUDIES:%=experiments/%.toml)

clean: ## remove what was built
	cargo clean
