# sidecore: what a person types. `make help` lists it.
#
# Everything that has to be installed is installed by scripts/setup, which says what it does.

SHELL := /bin/bash
PROFILE ?= release
PREFIX ?= /usr
PROGRAMS ?= target/$(PROFILE)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Where bash, zsh and fish look for completions of packages.
COMPLETIONS = $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/vendor-completions fish/vendor_completions.d)

.PHONY: help setup build test test-all unit lint demo bench guest-tests attacks fuzz install installed install-dev dist clean

help:            ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:           ## install what tests need and is missing (Debian packages; says which)
	@scripts/setup

build:           ## build the daemon, the command line and the benchmarks
	@scripts/setup --build
	@cargo build --$(PROFILE) -p sidecore -p sidecore-bench -p sidecore-routing

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

demo:            ## four unmodified VMs and the host exchange traffic; DEMO=router: a router with FRR; DEMO=group: three routers as one; DEMO=hosts: one switch over three hosts
	@scripts/demo $(DEMO)

bench:           ## our switch beside DPDK's and Open vSwitch's
	@scripts/setup --bench
	@cargo build --release -p sidecore -p sidecore-bench
	@target/release/sidecore bench pvp

attacks: setup build ## attacks from outside on the built program, with neighbours' traffic verified (as root)
	@attacks/run --binary target/$(PROFILE)/sidecore $(ATTACKS)

fuzz: setup      ## fuzz every target for FUZZ_SECONDS (60) each
	@scripts/fuzz $${FUZZ_SECONDS:-60}

install: build installed ## below PREFIX (/usr) of DESTDIR: programs, man pages, completions, service, its user; a configuration if there is none
	@[ -n "$(DESTDIR)" ] || ! command -v systemd-sysusers >/dev/null || systemd-sysusers sidecore.conf

# What PROGRAMS has, without building it.
installed:
	@install -d $(DESTDIR)$(PREFIX)/bin
	@install -sm755 -t $(DESTDIR)$(PREFIX)/bin $(addprefix $(PROGRAMS)/,sidecore sidecore-bench sidecore-agent)
	@install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(COMPLETIONS)
	@$(PROGRAMS)/sidecore man $(DESTDIR)$(PREFIX)/share/man/man1
	@$(PROGRAMS)/sidecore-bench man $(DESTDIR)$(PREFIX)/share/man/man1
	@install -Dm644 -t $(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man1/sidecore.toml.5
	@rm $(DESTDIR)$(PREFIX)/share/man/man1/sidecore.toml.5
	@for program in sidecore sidecore-bench; do \
		$(PROGRAMS)/$$program completions bash >$(word 1,$(COMPLETIONS))/$$program && \
		$(PROGRAMS)/$$program completions zsh >$(word 2,$(COMPLETIONS))/_$$program && \
		$(PROGRAMS)/$$program completions fish >$(word 3,$(COMPLETIONS))/$$program.fish || exit 1; \
	done
	@install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	@sed 's|/usr/bin/|$(PREFIX)/bin/|' packaging/sidecore.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/sidecore.service
	@install -Dm644 -t $(DESTDIR)$(PREFIX)/share/sidecore packaging/disks.conf packaging/netns.conf
	@install -m755 -t $(DESTDIR)$(PREFIX)/share/sidecore packaging/two-vms
	@install -Dm644 -t $(DESTDIR)$(PREFIX)/share/sidecore/grafana packaging/grafana/*
	@install -Dm644 packaging/sidecore.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/sidecore.conf
	@[ -e $(DESTDIR)/etc/sidecore/sidecore.toml ] || install -Dm644 packaging/sidecore.toml $(DESTDIR)/etc/sidecore/sidecore.toml

install-dev:     ## below PREFIX of DESTDIR: netmap's headers, libnetmap.a and its pkg-config file
	@install -d target/libnetmap
	@$(MAKE) -s -C crates/port/c OUT=$(CURDIR)/target/libnetmap $(CURDIR)/target/libnetmap/libnetmap.a
	@install -Dm644 -t $(DESTDIR)$(PREFIX)/include/sidecore include/libnetmap.h
	@install -Dm644 -t $(DESTDIR)$(PREFIX)/include/sidecore/net include/net/*.h
	@install -Dm644 -t $(DESTDIR)$(PREFIX)/lib target/libnetmap/libnetmap.a
	@install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	@sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' packaging/libnetmap.pc >$(DESTDIR)$(PREFIX)/lib/pkgconfig/libnetmap.pc

dist:            ## leave in dist/: tarball, Debian packages and image of this commit, what they are made of, and sums
	@scripts/dist

clean:           ## remove build products and the lab
	@rm -rf target dist .lab fuzz/target
