# SPDX-License-Identifier: MIT
# The programs of the benchmark; never with a sanitizer.

bench_src := $(filter-out tests/bench/worker%.c,$(wildcard tests/bench/*.c))
BENCH_CFLAGS := -std=gnu11 -D_GNU_SOURCE -MMD -MP $(warnings) -O2 -g

.PHONY: bench-programs
bench-programs: $(BUILD)/bench/bench $(BUILD)/bench/worker

$(BUILD)/bench/obj/%.o: tests/bench/%.c | $(BUILD)/.deps
	@mkdir -p $(@D)
	$(CC) $(BENCH_CFLAGS) $(if $(findstring store,$*),$$(pkg-config --cflags hiredis)) -c -o $@ $<

$(BUILD)/bench/bench: $(bench_src:tests/bench/%.c=$(BUILD)/bench/obj/%.o)
	$(CC) -o $@ $^ $$(pkg-config --libs hiredis)

$(BUILD)/bench/worker: $(BUILD)/bench/obj/worker.o $(BUILD)/bench/obj/worker_records.o
	$(CC) -o $@ $^
