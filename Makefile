# SPDX-License-Identifier: MIT
#
# dlockshim. The targets are listed by `make help`; every variable set with ?= is yours.
# Flags of a library go only to the files that include it: hiredis' carry
# -D_FILE_OFFSET_BITS=64, which would rename a function called fcntl to fcntl64.
# pkg-config is asked inside the recipes, so that this file can be read before
# the packages are there.

BUILD ?= build
CFLAGS ?= -O2 -g
SAN ?=
WERROR ?=
DEPS ?= yes
V ?=
T ?=

# As many jobs as processors, unless the caller said how many.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

comma := ,
Q := $(if $(V),,@)
say = @$(if $(V),:,echo '  $(1)' $(patsubst $(BUILD)/%,%,$@))
ifneq ($(SAN),)
override BUILD := $(BUILD)-$(subst $(comma),-,$(SAN))
san_flags := -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
endif

warnings := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(WERROR),-Werror)
base_flags := -std=gnu11 -D_GNU_SOURCE -I. -MMD -MP $(warnings) -fstack-protector-strong
# The packages whose headers a file includes, as pkg-config knows them.
pkgs_of = $$(sed -n 's/^\#include <\(hiredis\|libconfig\|uuid\)[./].*/\1/p' $< | sort -u) $(pkgs)
cflags_of = $$(p="$(strip $(pkgs_of))"; [ -z "$${p%% }" ] || pkg-config --cflags $$p)

# ---- what each program is made of ----

shim_src := $(wildcard shim/*.c) $(wildcard config/rules.c config/pattern.c config/runtime_dir.c config/lex.c)
model_src := $(wildcard daemon-lite/store/*model*.c)
store_src := $(filter-out $(model_src),$(wildcard daemon-lite/store/*.c))
config_src := $(wildcard config/*.c)
agent_src := $(wildcard daemon-lite/*.c)
dlock_src := $(wildcard daemon-lite/dlock/*.c)
unit_src := $(wildcard tests/unit/test_*.c tests/model/test_*.c)
prog_src := $(wildcard tests/shell/progs/*.c)

obj = $(patsubst build/%.c,$(BUILD)/obj/%.o,$(filter build/%,$(1))) $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out build/%,$(1)))
pic = $(patsubst %.c,$(BUILD)/pic/%.o,$(1))
pic32 = $(patsubst %.c,$(BUILD)/pic32/%.o,$(1))

shared_obj := $(call obj,$(store_src) $(config_src) shim/wire.c shim/standing.c build/lua_scripts.c)
unit_bin := $(patsubst tests/%.c,$(BUILD)/tests/%,$(unit_src))
prog_bin := $(patsubst tests/shell/progs/%.c,$(BUILD)/progs/%,$(prog_src))
map := $(wildcard shim/libdlockshim.map)

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all lib32 demo test check bench lint clean help deps tests tests32

all: $(BUILD)/libdlockshim.so $(BUILD)/dlockd $(BUILD)/dlock ## the three programs, into BUILD (build)

lib32: $(BUILD)/lib32/libdlockshim.so ## the library for 32-bit programs (package gcc-multilib)

# ---- packages ----

deps: $(BUILD)/.deps ## install the missing Debian packages (root), or print the command

$(BUILD)/.deps: tests/deps.sh
	@mkdir -p $(@D)
	@$(if $(filter yes,$(DEPS)),tests/deps.sh,:)
	@touch $@

$(BUILD)/.programs: tests/deps.sh | $(BUILD)/.deps
	@$(if $(filter yes,$(DEPS)),tests/deps.sh programs,:)
	@touch $@

# ---- objects ----

$(BUILD)/obj/%.o: %.c | $(BUILD)/.deps
	@mkdir -p $(@D)
	$(call say,CC  )
	$(Q)$(CC) $(base_flags) $(CPPFLAGS) $(CFLAGS) $(san_flags) -fPIE $(cflags_of) -c -o $@ $<

# The library goes into foreign programs: never with a sanitizer, nothing but libc.
$(BUILD)/pic/%.o: %.c | $(BUILD)/.deps
	@mkdir -p $(@D)
	$(call say,CC  )
	$(Q)$(CC) $(base_flags) $(CPPFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -c -o $@ $<

# The same library for 32-bit programs. Offsets of 64 bits everywhere but in the entry points, which undo it.
$(BUILD)/pic32/%.o: %.c | $(BUILD)/.deps
	@mkdir -p $(@D)
	$(call say,CC32)
	$(Q)$(CC) -m32 -Wno-psabi $(base_flags) -D_FILE_OFFSET_BITS=64 $(CPPFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -c -o $@ $<

$(BUILD)/obj/lua_scripts.o: $(BUILD)/lua_scripts.c
	@mkdir -p $(@D)
	$(call say,CC  )
	$(Q)$(CC) $(base_flags) $(CPPFLAGS) $(CFLAGS) $(san_flags) -fPIE -c -o $@ $<

$(BUILD)/lua_scripts.c: daemon-lite/store/embed.sh $(wildcard daemon-lite/store/lua/*.lua) | $(BUILD)/.deps
	$(call say,LUA )
	$(Q)sh daemon-lite/store/embed.sh daemon-lite/store/lua > $@

$(BUILD)/obj/daemon-lite/store/redis%.o: pkgs = hiredis

# ---- programs ----

$(BUILD)/libdlockshim.so: $(call pic,$(shim_src)) $(map)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libdlockshim.so $(map:%=-Wl,--version-script=%) \
		-Wl,-z,relro,-z,now,--no-undefined -Wl,--as-needed -o $@ $(filter %.o,$^)

$(BUILD)/lib32/libdlockshim.so: $(call pic32,$(shim_src)) $(map)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) -m32 $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libdlockshim.so $(map:%=-Wl,--version-script=%) \
		-Wl,-z,relro,-z,now,--no-undefined -Wl,--as-needed -o $@ $(filter %.o,$^)

$(BUILD)/dlockd: $(call obj,$(agent_src)) $(shared_obj)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(san_flags) $(LDFLAGS) -pie -pthread -o $@ $^ $$(pkg-config --libs hiredis libconfig uuid)

# dlock takes from the agent's objects only what it calls (its own main wins).
$(BUILD)/agent.a: $(call obj,$(agent_src)) $(shared_obj)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/dlock: $(call obj,$(dlock_src)) $(BUILD)/agent.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(san_flags) $(LDFLAGS) -pie -pthread -o $@ $^ $$(pkg-config --libs hiredis libconfig uuid)

# ---- tests ----

# A unit test says in a comment what it is linked with: LINK: a.c b.c, LIBS: hiredis
words_of = $(shell awk -v key=$(2): '{ for (i = 1; i <= NF; i++) { if ($$i == key) on = 1; else if ($$i ~ /\*\//) on = 0; else if (on && $$i != "*") print $$i } }' $(1))
define unit_rule
$(BUILD)/tests/$(1): pkgs := $(call words_of,tests/$(1).c,LIBS)
$(BUILD)/tests/$(1): $(call obj,tests/$(1).c $(sort $(call words_of,tests/$(1).c,LINK)))
endef
$(foreach t,$(unit_src:tests/%.c=%),$(eval $(call unit_rule,$(t))))

$(unit_bin):
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(san_flags) $(LDFLAGS) -pie -pthread -o $@ $^ -lcmocka $(if $(pkgs),$$(pkg-config --libs $(pkgs)))

# Small programs that the shell tests run; never with a sanitizer (some close every descriptor, some are preloaded).
$(BUILD)/progs/%: tests/shell/progs/%.c | $(BUILD)/.deps
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(base_flags) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -pthread $$(grep -q '/\* STATIC \*/' $< && echo -static) -o $@ $<

# What is built for 32 bits, and programs to try it, where the compiler can: twice the same, with 32-bit and with 64-bit offsets.
narrow_flags = -m32 -Wno-psabi $(base_flags) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)
$(BUILD)/lib32/transcript: tests/unit/narrow/transcript.c | $(BUILD)/.deps
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(narrow_flags) -o $@ $<

$(BUILD)/lib32/transcript64: tests/unit/narrow/transcript.c | $(BUILD)/.deps
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(narrow_flags) -D_FILE_OFFSET_BITS=64 -D_TIME_BITS=64 -o $@ $<

tests32: | $(BUILD)/.programs
	+$(Q)! printf '\043include <stdio.h>\nint main(void) { return 0; }\n' | $(CC) -m32 -x c -o /dev/null - 2>/dev/null || \
		$(MAKE) -s BUILD=$(BUILD) SAN= lib32 $(BUILD)/lib32/transcript $(BUILD)/lib32/transcript64

tests: all $(unit_bin) $(prog_bin) tests32 ## build the tests, run none

test: tests ## every test (T=name: only files whose name contains it); N passed, N failed
	@BUILD=$(BUILD) tests/run.sh full $(T)

check: tests ## the quick part of the tests, under two minutes
	@BUILD=$(BUILD) tests/run.sh quick $(T)

bench: all bench-programs ## lock prices and hand-over times next to floors measured in the same run
	+@BUILD=$(BUILD) tests/bench/run

demo: all $(prog_bin) ## two hosts, two copies of one lock file, unmodified programs that exclude each other
	@BUILD=$(BUILD) tests/demo.sh

lint: $(BUILD)/.deps ## warnings as errors, shellcheck, layers, exported symbols, licence lines
	+@BUILD=$(BUILD) tests/lint/run.sh

-include tests/bench/bench.mk

# ---- house ----

clean: ## remove what was built
	rm -rf $(BUILD)

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16
	@echo '  BUILD=dir, CFLAGS=…, SAN=address,undefined or SAN=thread, WERROR=1, V=1 (show the commands), DEPS=no (do not look for packages)'

-include $(shell [ ! -d $(BUILD) ] || find $(BUILD) -name '*.d')
