# sidecore: what a person types. `make help` lists it.
#
# Everything that has to be installed is installed by scripts/setup, which says what it does.

SHELL := /bin/bash
PROFILE ?= release
PREFIX ?= /usr
# Where bash, zsh and fish look for completions of packages.
COMPLETIONS = $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/vendor-completions fish/vendor_completions.d)

.PHONY: help setup build test test-all unit lint demo bench guest-tests attacks fuzz install clean

help:            ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:           ## install what tests need and is missing (Debian packages; says which)
	@scripts/setup

build:           ## build the daemon, the command line and the benchmarks
	@scripts/setup --build
	@cargo build --$(PROFILE) -p sidecore -p sidecore-bench

test: setup      ## unit, property, model, black box, the attacks that found most, a guest for each kind of device
	@scripts/test

test-all: setup  ## those, all attacks and guests, and the fuzzers; MINUTES=60: no part of the rest begins later
	@scripts/test --all $(MINUTES)

unit: setup      ## the tests that need neither root nor guests
	@cargo test --workspace --lib --bins

guest-tests: setup ## the tests that boot real guests (as root)
	@cargo build -p sidecore
	@cargo test -p sidecore-lab -- --test-threads=1

lint:            ## formatting, lints and the rules of the house
	@scripts/setup --lint
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets -- -D warnings

demo:            ## four unmodified VMs and the host exchange traffic; DEMO=router: two VMs behind a router with FRR
	@scripts/demo $(DEMO)

bench:           ## our switch beside DPDK's and Open vSwitch's
	@scripts/setup --bench
	@cargo build --release -p sidecore -p sidecore-bench
	@target/release/sidecore bench pvp

attacks: setup build ## attacks from outside on the built program, with neighbours' traffic verified (as root)
	@attacks/run --binary target/$(PROFILE)/sidecore $(ATTACKS)

fuzz: setup      ## fuzz every target for FUZZ_SECONDS (60) each
	@scripts/fuzz $${FUZZ_SECONDS:-60}

install: build   ## below PREFIX (/usr) of DESTDIR: programs, man pages, completions, service, its user; a configuration if there is none
	@install -d $(DESTDIR)$(PREFIX)/bin
	@install -sm755 -t $(DESTDIR)$(PREFIX)/bin target/$(PROFILE)/sidecore target/$(PROFILE)/sidecore-bench
	@install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(COMPLETIONS)
	@target/$(PROFILE)/sidecore man $(DESTDIR)$(PREFIX)/share/man/man1
	@target/$(PROFILE)/sidecore-bench man $(DESTDIR)$(PREFIX)/share/man/man1
	@install -Dm644 -t $(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man1/sidecore.toml.5
	@rm $(DESTDIR)$(PREFIX)/share/man/man1/sidecore.toml.5
	@for program in sidecore sidecore-bench; do \
		target/$(PROFILE)/$$program completions bash >$(word 1,$(COMPLETIONS))/$$program && \
		target/$(PROFILE)/$$program completions zsh >$(word 2,$(COMPLETIONS))/_$$program && \
		target/$(PROFILE)/$$program completions fish >$(word 3,$(COMPLETIONS))/$$program.fish || exit 1; \
	done
	@install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	@sed 's|/usr/bin/|$(PREFIX)/bin/|' packaging/sidecore.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/sidecore.service
	@install -Dm644 -t $(DESTDIR)$(PREFIX)/share/sidecore packaging/disks.conf packaging/netns.conf
	@install -Dm644 packaging/sidecore.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/sidecore.conf
	@[ -n "$(DESTDIR)" ] || ! command -v systemd-sysusers >/dev/null || systemd-sysusers sidecore.conf
	@[ -e $(DESTDIR)/etc/sidecore/sidecore.toml ] || install -Dm644 packaging/sidecore.toml $(DESTDIR)/etc/sidecore/sidecore.toml

clean:           ## remove build products and the lab
	@rm -rf target .lab fuzz/target
