# The commands of this project. `make` alone lists them, with what each is for.

SHELL := /bin/bash
# Where rustup puts cargo: a shell opened before it was installed does not know yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

TARGET := $(or $(CARGO_TARGET_DIR),target)
# A checker goes by the lock file as it is; a developer's build may bring it up to date.
LOCKED := $(if $(CI),--locked)
NEED := deploy/install/need.sh
PROGRAMS := -p cxloe-gmm -p cxloe-mn -p cxloe-cn -p cxloe-bench --bins -p cxloe-preload -p cxloe-vm-preload -p cxloe-c --lib
# Tests wait for daemons most of the time: two more run than there are cores.
AT_ONCE := $(shell expr $$(nproc) + 2)
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

# How long each fuzz target runs (make fuzz), and further options of bench/fuzz/run.sh.
SECONDS_EACH ?= 20
FUZZ ?=
# Which test is run how often (make stress).
RUNS ?= 50
# Which measurement, with which options (make bench).
RUN ?= quickstart --trials 32 --output $(TARGET)/bench

.DEFAULT_GOAL := help
.PHONY: help build measured quickstart test test-all stress fmt lint doc book man deb dpdk wheel repo fuzz bench licences clean

help: ## This list
	@echo 'CXL over Ethernet: memory of other servers, by load and store, over plain Ethernet.'
	@echo
	@echo 'New here?  make quickstart  builds everything and shows remote memory at work, on this machine alone.'
	@echo
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 21
	@echo
	@echo 'What a step needs from the system is installed first, and said before it is (deploy/install/need.sh).'

build: ## The programs: gmm, mn-server, cn-agent, cxloe-bench in target/release
	@$(NEED) rust cc
	@[ -e $(TARGET)/release/cxloe-bench ] || echo 'Building: about 5 minutes on two cores, once.'
	cargo build --release $(LOCKED) $(PROGRAMS)

measured: ## The same, optimised across crates, as they are measured and packaged, in target/measured
	@$(NEED) rust cc
	@[ -e $(TARGET)/measured/cxloe-bench ] || echo 'Building: about 8 minutes on two cores, once.'
	cargo build --profile measured $(LOCKED) $(PROGRAMS)

quickstart: build ## Two nodes joined by a cable in this machine: what works, how fast, and a report in target/quickstart
	@$(NEED) ip
	@echo 'Measuring: less than two minutes.'
	$(TARGET)/release/cxloe-bench quickstart

test test-all: export CXLOE_BUILT = 1
test: test-build ## All tests but the long ones: the build, and about 7 minutes on two cores
	$(call run_tests,)

test-all: export PROPTEST_CASES ?= 5000
test-all: export CXLOE_SIM_SEEDS ?= 10000
test-all: test-build ## All tests, thousands of simulated runs and random cases more, a minute for each fuzz target
	@$(NEED) schemathesis
	$(call run_tests,all)
	$(MAKE) fuzz SECONDS_EACH=60

stress: test-build ## One test many times, at rest, with pauses and beside busy cores: make stress TEST=name RUNS=50
	@$(NEED) stress-ng
	.ci/stress '$(or $(TEST),$(error name a test: make stress TEST=name))' $(RUNS)

# Tests of the whole system start the programs that lie beside them, so these are built with them, in the profile
# `checked`: what runs is optimised as a release is.
.PHONY: test-build
test-build:
	@$(NEED) rust cc libclang c++ go ip unshare setpriv etcd programs nbd qemu cxl chromium deploy deb repo tshark python-protocol peers promtool tmux ethtool ansible kubernetes-validate openapi-python-client pytest dpdk dpdk-cards
	@wire/dpdk/build $(TARGET)/dpdk
	@mkdir -p $(TARGET)/checked/deps && ln -sfn ../dpdk/libcxloe_dpdk.so $(TARGET)/checked/libcxloe_dpdk.so
	@ln -sfn ../../dpdk/libcxloe_dpdk.so $(TARGET)/checked/deps/libcxloe_dpdk.so
	cargo build --profile checked --workspace --all-targets $(LOCKED)

# With nextest, .config/nextest.toml says what runs beside what; without, the tests of the whole system follow the
# others, one by one. Examples in the documentation are tests as well. Argument: `all` adds those marked as long.
# Only a checker's run tries a failed test again (profile ci).
define run_tests
$(if $(NEXTEST),\
cargo nextest run --cargo-profile checked --workspace --test-threads $(AT_ONCE) $(LOCKED) $(if $(1),--profile all --run-ignored all,$(if $(CI),--profile ci)) || \
{ .ci/failed $(TARGET)/nextest/$(or $(if $(1),all),$(if $(CI),ci),default)/junit.xml; exit 1; },\
cargo test --profile checked --workspace --exclude cxloe-system --all-targets --no-fail-fast $(LOCKED) -- $(if $(1),--include-ignored) && \
cargo test --profile checked -p cxloe-system --all-targets --no-fail-fast $(LOCKED) -- --test-threads=1 $(if $(1),--include-ignored))
cargo test --profile checked --workspace --doc --no-fail-fast $(LOCKED)
endef

fmt: ## Bring the source into the one form
	cargo fmt --all
	cargo fmt --all --manifest-path bench/fuzz/Cargo.toml

lint: ## Form, clippy and the documentation's own checks, every warning an error
	@$(NEED) rust cc libclang
	cargo fmt --all --check
	cargo fmt --all --manifest-path bench/fuzz/Cargo.toml --check
	cargo clippy --profile checked --workspace --all-targets $(LOCKED) -- -D warnings
	cargo clippy --profile checked --workspace --manifest-path bench/fuzz/Cargo.toml --target-dir $(TARGET) --all-targets $(LOCKED) -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --profile checked --workspace --no-deps --document-private-items $(LOCKED)

doc: ## The documentation of the crates, in target/doc
	cargo doc --workspace --no-deps $(LOCKED)
	@echo 'Open $(TARGET)/doc/cxloe_wire/index.html'

.PHONY: messages
messages: ## The book's page of messages, from the errors in the sources; remarks in it stay
	CXLOE_UPDATE=1 cargo test --profile checked $(LOCKED) -p cxloe-system --test book -- every_error_of_nodes_and_manager_is_in_the_book

.PHONY: book
book: ## The book: use it, run it, measure it, change it; in target/book
	@$(NEED) rust cc
	@deploy/book/build $(TARGET)

man: build ## Manual pages of all programs, in target/man
	for program in gmm mn-server cn-agent cxloe-bench; do $(TARGET)/release/$$program man --dir $(TARGET)/man || exit; done
	@echo 'Read one with: man -l $(TARGET)/man/gmm.1'

deb: measured dpdk ## Debian packages of all programs, in target/deb
	@$(NEED) deb
	@ln -sfn ../dpdk/libcxloe_dpdk.so $(TARGET)/measured/libcxloe_dpdk.so
	deploy/debian/build $(TARGET)/measured $(TARGET)/deb
	@echo 'Install them with: apt-get install ./$(TARGET)/deb/cxloe-*.deb ./$(TARGET)/deb/libcxloe0_*.deb'

dpdk: ## The plug-in for links by DPDK, in target/dpdk
	@$(NEED) cc dpdk
	@wire/dpdk/build $(TARGET)/dpdk

wheel: ## The Python package cxloe for this machine's kind, in target/wheels
	@$(NEED) rust cc python3 strip
	cargo build --profile measured $(LOCKED) -p cxloe-python
	cn-agent/python/wheel.py --strip $(TARGET)/measured/libcxloe_python.so $(TARGET)/wheels
	@echo 'Install it with: pip install $(TARGET)/wheels/cxloe-*.whl'

repo: deb ## A signed apt repository of them, in target/repo (REPO_KEY, REPO_URI: deploy/debian/repo)
	@$(NEED) repo
	deploy/debian/repo $(TARGET)/deb $(TARGET)/repo

# Beside the rest, and not among it: it is built with other flags.
fuzz: export CARGO_TARGET_DIR := $(abspath $(TARGET))/fuzz
fuzz: ## Random and mutated bytes against everything that reads from networks and sockets (SECONDS_EACH=20)
	@$(NEED) rust cc
	bench/fuzz/run.sh $(FUZZ) $(SECONDS_EACH)

bench: measured ## The quickstart's figures from four times as many trials; others with RUN='latency --help'
	@$(NEED) ip
	$(TARGET)/measured/cxloe-bench $(RUN)

licences: ## Licences, sources and known weaknesses of the dependencies (cargo-deny)
	@.ci/audit

clean: ## Remove everything that was built
	cargo clean
