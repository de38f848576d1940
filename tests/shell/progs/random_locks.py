#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The same random lock calls on the bare kernel and spread over hosts: the answers must agree.

random_locks.py DIRECTORY SEED SEQUENCES STEPS KEEP WORKER...

A WORKER is NAME=IN:OUT:PID:NSPID:HOST:PATH:SEEN:PARTNER, an actor (progs/actor.c) behind two FIFOs. PATH is its
directory as it sees it, SEEN the same as seen from here. Those of host `k` run on the bare
kernel in one directory; each has one partner on some host with the library. Each step is told to a worker and to its
partner; a call that blocks in the kernel must block there too, and ends for both when somebody makes room. So the
kernel is the oracle for everything but F_GETLK, where several locks may be in the way and any of them is a right answer:
for that a model of who holds what is kept from the calls that succeeded.

What is not defined is not asked: a blocking call is made only if it does not conflict with somebody who waits already
(who comes first is the kernel's choice), and a try not if who waits is on another host: a program that waits in
the kernel there counts as a holder for the others (docs/DESIGN.md). A step that cannot be done as it stands (its worker waits) is left out, so any
part of a sequence is a sequence: that is how a failing one is made shorter before it is kept in the file KEEP.
KEEP can be replayed: if it exists already it is all that is run.
"""
import json, os, random, select, signal, sys, time

MAX = (1 << 63) - 1
END = 1 << 63
SIZE = 1000                                     # of each file


class Mismatch(Exception):
    pass


class Worker:
    def __init__(self, text):
        fifo_in, fifo_out, pid, nspid, self.host, self.path, self.seen, self.partner = text.split(':')
        self.wfd = os.open(fifo_in, os.O_WRONLY)
        self.rfd = os.open(fifo_out, os.O_RDONLY | os.O_NONBLOCK)
        self.pid, self.nspid = int(pid), int(nspid)
        self.buffer = b''

    def tell(self, line):
        os.write(self.wfd, line.encode() + b'\n')

    def got(self, seconds):
        """The next answer without its time, or None."""
        end = time.monotonic() + seconds
        while b'\n' not in self.buffer:
            left = max(0, end - time.monotonic())
            if not select.select([self.rfd], [], [], left)[0]:
                return None
            self.buffer += os.read(self.rfd, 4096)
        line, self.buffer = self.buffer.split(b'\n', 1)
        return line.decode().rsplit(' ', 1)[0]

    def ask(self, line):
        self.tell(line)
        answer = self.got(20)
        if answer is None:
            raise Mismatch('%s on %s: no answer to %s' % (self.pid, self.host, line))
        return answer

    def interrupted(self, seconds):
        """Signalled until it answers: a signal that comes before it sleeps is lost, as ever."""
        answer = None
        for _ in range(int(seconds * 10)):
            os.kill(self.pid, signal.SIGALRM)
            answer = self.got(0.1)
            if answer is not None:
                break
        return answer

    def got_unless_it_waits(self):
        """Its answer, or None once it sleeps in the kernel."""
        answer = self.got(0.001)
        end = time.monotonic() + 20
        while answer is None and not self.waits():
            answer = self.got(0.002)
            if time.monotonic() > end:
                raise Mismatch('%s neither answers nor waits' % self.pid)
        return answer or self.got(0)    # it may have been seen asleep behind the call, with its answer given

    def waits(self):
        """On the bare kernel: whether it sleeps in F_SETLKW or F_OFD_SETLKW. Whoever has been woken does not."""
        with open('/proc/%d/syscall' % self.pid) as f:
            words = f.read().split()
        if words[0] != '72' or words[2] not in ('0x7', '0x26'):
            return False
        with open('/proc/%d/stat' % self.pid) as f:     # asleep in state D it waits for whoever reads /proc/locks
            return f.read().rsplit(')', 1)[1].split()[0] == 'S'


class Model:
    """Who holds what. An owner is ('p', worker) or ('o', description)."""

    def __init__(self, n):
        self.locks = {}                         # owner -> list of [start, end, mode]
        self.slots = [[] for _ in range(n)]     # worker -> list of (description, mode of open) or None
        self.position = {}                      # description -> offset
        self.descriptions = 0

    def open(self, w, how):
        self.descriptions += 1
        self.slots[w].append((self.descriptions, how))
        self.position[self.descriptions] = 0

    def dup(self, w, slot):
        self.slots[w].append(self.slots[w][slot])

    def close(self, w, slot):
        description = self.slots[w][slot][0]
        self.slots[w][slot] = None
        self.locks.pop(('p', w), None)
        if not any(s and s[0] == description for s in self.slots[w]):
            self.locks.pop(('o', description), None)

    def range_of(self, w, slot, whence, start, length):
        base = {'s': 0, 'c': self.position[self.slots[w][slot][0]], 'e': SIZE}[whence]
        start += base
        if length < 0:
            start, length = start + length, -length
        return start, start + length if length else END

    def set(self, owner, start, end, mode):
        kept = []
        for s, e, m in self.locks.get(owner, []):
            if s < start:
                kept.append([s, min(e, start), m])
            if e > end:
                kept.append([max(s, end), e, m])
        if mode != 'u':
            kept.append([start, end, mode])
        kept.sort()
        merged = []
        for lock in kept:
            if merged and merged[-1][1] == lock[0] and merged[-1][2] == lock[2]:
                merged[-1][1] = lock[1]
            else:
                merged.append(lock)
        self.locks[owner] = merged

    def in_the_way(self, owner, start, end, mode):
        for other, locks in self.locks.items():
            if (other == owner) != (mode == 'u'):       # F_OFD_GETLK with F_UNLCK shows one's own
                continue
            for s, e, m in locks:
                if s < end and start < e and (mode != 'r' or m == 'w'):
                    yield other, s, e, m


class Run:
    """One sequence on fresh files."""

    def __init__(self, world, number, steps):
        self.world, self.steps = world, steps
        self.kernel, self.spread = world
        self.model = Model(len(self.kernel))
        self.blocked = {}                       # worker -> (line, what to do with the model when it ends)
        self.log = []
        self.name = 'x%d' % number
        self.over = False

    def workers(self):
        return range(len(self.kernel))

    def both(self, w, line):
        """A call that does not block: the two answers."""
        self.kernel[w].tell(line)
        self.spread[w].tell(line)
        a, b = self.kernel[w].got(20), self.spread[w].got(20)
        self.log.append('%d (%s) %s: %s' % (w, self.spread[w].host, line, a if a == b else '%s, spread: %s' % (a, b)))
        return a, b

    def same(self, w, line):
        a, b = self.both(w, line)
        if a != b:
            raise Mismatch('%s of worker %d: the kernel %s, spread %s' % (line, w, a, b))
        return a

    def open(self, w, how):
        for worker in (self.kernel[w], self.spread[w]):
            worker.tell('open %s %s/%s' % (how, worker.path, self.name))
        a, b = self.kernel[w].got(20), self.spread[w].got(20)
        if a != b:
            raise Mismatch('open: %s and %s' % (a, b))
        self.model.open(w, how)

    def begin(self):
        for path in self.files():
            with open(path, 'w') as f:
                f.truncate(SIZE)
        for w in self.workers():
            self.open(w, 'rw')

    def end(self):
        """Whoever still waits is interrupted; everything is closed."""
        for w in self.workers():
            for worker in (self.kernel[w], self.spread[w]):
                if w in self.blocked and worker not in self.blocked[w][2]:
                    if worker.interrupted(20) is None:
                        raise Mismatch('worker %d on %s is not interrupted' % (w, worker.host))
        for worker in self.kernel + self.spread:
            worker.ask('closeall')
        for path in self.files():
            if os.path.exists(path):
                os.unlink(path)

    def files(self):
        return {os.path.realpath(worker.seen) + '/' + self.name if not worker.seen.startswith('/proc/') else worker.seen + '/' + self.name
                for worker in self.kernel + self.spread}

    def slot(self, w, pick, usable=lambda slot: True):
        slots = [i for i, s in enumerate(self.model.slots[w]) if s and usable(s)]
        return slots[pick % len(slots)] if slots else None

    def meets_a_waiter_elsewhere(self, w, start, end, mode, _):
        return mode != 'u' and any(self.spread[v].host != self.spread[w].host and s < end and start < e and (mode == 'w' or m == 'w')
                                   for v, (_, (s, e, m, _), _) in self.blocked.items())

    def meets_a_waiter(self, start, end, mode, _):
        return any(s < end and start < e and (mode == 'w' or m == 'w') for _, (s, e, m, _), _ in self.blocked.values())

    def step(self, step):
        kind, w, pick = step[:3]
        if kind == 'signal':
            self.interrupt(pick)
            return
        if w in self.blocked:
            return
        if kind == 'open':
            if len([s for s in self.model.slots[w] if s]) < 4 and len(self.model.slots[w]) < 40:
                self.open(w, ('rw', 'r', 'w')[pick % 3])
            return
        slot = self.slot(w, pick)
        if slot is None:
            self.open(w, 'rw')
            return
        if kind == 'dup':
            if len(self.model.slots[w]) < 40:
                self.same(w, 'dup %d' % slot)
                self.model.dup(w, slot)
        elif kind == 'close':
            self.same(w, 'close %d' % slot)
            self.model.close(w, slot)
        elif kind == 'seek':
            self.same(w, 'seek %d %d' % (slot, step[3]))
            self.model.position[self.model.slots[w][slot][0]] = step[3]
        elif kind == 'lockf':
            self.lockf(w, slot, step[3], step[4])
        elif kind == 'get':
            self.get(w, slot, *step[3:])
        elif kind == 'set':
            self.set(w, slot, *step[3:])

    def settle(self):
        """After each step: whoever was waiting and waits no more in the kernel must be through in the other world, too."""
        for w in list(self.blocked):
            line, wait, done = self.blocked[w]
            kernel, spread = self.kernel[w], self.spread[w]
            answer = kernel.got_unless_it_waits()
            if answer is None:
                early = spread.got(0)
                if early is not None:
                    done.append(spread)
                    if early == 'EDEADLK' and self.is_in_a_cycle(w):
                        self.over = True        # the kernel looks only along one of the locks in its way
                        return
                    raise Mismatch('%s of worker %d waits in the kernel, and is over when spread: %s' % (line, w, early))
                continue
            done.append(kernel)
            other = spread.got(10)
            self.log.append('%d (%s) %s is over: %s, spread: %s' % (w, spread.host, line, answer, other))
            if other is not None:
                done.append(spread)
            if other != answer:
                raise Mismatch('%s of worker %d: the kernel %s, spread %s' % (line, w, answer, other or 'still waits'))
            del self.blocked[w]
            if answer == 'ok 0':
                self.model.set(wait[3], wait[0], wait[1], wait[2])

    def interrupt(self, pick):
        if not self.blocked:
            return
        w = sorted(self.blocked)[pick % len(self.blocked)]
        line, _, done = self.blocked[w]
        for worker in (self.kernel[w], self.spread[w]):
            answer = worker.interrupted(10)
            if answer is not None:
                done.append(worker)
            self.log.append('%d (%s) signal to %s: %s' % (w, worker.host, line, answer))
            if answer != 'EINTR':
                raise Mismatch('a signal to worker %d on %s, which waits: %s' % (w, worker.host, answer))
        del self.blocked[w]

    def owner(self, w, slot, ofd):
        return ('o', self.model.slots[w][slot][0]) if ofd else ('p', w)

    def set(self, w, slot, ofd, block, mode, whence, start, length):
        first, end = self.model.range_of(w, slot, whence, start, length)
        owner = self.owner(w, slot, ofd)
        if block and mode != 'u' and self.meets_a_waiter(first, end, mode, owner):
            block = False
        line = 'fc %ssetlk%s %d %s %s %d %d' % ('o' if ofd else '', 'w' if block else '', slot, mode, whence, start, length)
        self.call(w, line, block, (first, end, mode, owner))

    def lockf(self, w, slot, how, length):
        first, end = self.model.range_of(w, slot, 'c', 0, length)
        if how == 'test':
            self.same(w, 'lockf %d test %d' % (slot, length))
            return
        wait = (first, end, 'u' if how == 'ulock' else 'w', ('p', w))
        if how == 'lock' and self.meets_a_waiter(*wait):
            how = 'tlock'
        self.call(w, 'lockf %d %s %d' % (slot, how, length), how == 'lock', wait)

    def call(self, w, line, block, wait):
        kernel, spread = self.kernel[w], self.spread[w]
        if not block:
            if self.meets_a_waiter_elsewhere(w, *wait):
                return
            if self.same(w, line) == 'ok 0':
                self.model.set(wait[3], wait[0], wait[1], wait[2])
            return
        kernel.tell(line)
        answer = kernel.got_unless_it_waits()
        spread.tell(line)
        if answer is None:
            self.log.append('%d (%s) %s waits' % (w, spread.host, line))
            self.blocked[w] = (line, wait, [])
            early = spread.got(0.01)
            if early is not None:
                self.blocked[w][2].append(spread)
                if early == 'EDEADLK' and self.is_in_a_cycle(w):
                    self.over = True
                    return
                raise Mismatch('%s of worker %d waits in the kernel, and does not when spread: %s' % (line, w, early))
            return
        if answer == 'EDEADLK':
            self.deadlock(w, line, wait)
            return
        other = spread.got(20)
        self.log.append('%d (%s) %s: %s, spread: %s' % (w, spread.host, line, answer, other))
        if other != answer:
            if other is None:
                self.blocked[w] = (line, wait, [kernel])
            raise Mismatch('%s of worker %d: the kernel %s, spread %s' % (line, w, answer, other or 'waits'))
        if answer == 'ok 0':
            self.model.set(wait[3], wait[0], wait[1], wait[2])

    def is_in_a_cycle(self, w):
        """Whether w waits for itself, over POSIX waits and all the POSIX locks in the way of each."""
        seen, todo = set(), [w]
        while todo:
            _, (start, end, mode, owner), _ = self.blocked[todo.pop()]
            if owner[0] != 'p':
                continue
            for (kind, holder), *_ in self.model.in_the_way(owner, start, end, mode):
                if kind == 'p' and holder == w:
                    return True
                if kind == 'p' and holder in self.blocked and holder not in seen:
                    seen.add(holder)
                    todo.append(holder)
        return False

    def deadlock(self, w, line, wait):
        """The kernel refuses who closes the cycle; over hosts it may be another one of those who wait. Then the worlds part."""
        self.over = True
        self.blocked[w] = (line, wait, [self.kernel[w]])
        if not self.is_in_a_cycle(w):           # it leads through the wait of an OFD lock: Linux sees some of these, the library none
            self.log.append('%d (%s) %s: EDEADLK through an OFD wait' % (w, self.spread[w].host, line))
            return
        end = time.monotonic() + 5
        victims = []
        while time.monotonic() < end and not victims:
            for v in self.blocked:
                answer = self.spread[v].got(0.01)
                if answer is not None:
                    self.blocked[v][2].append(self.spread[v])
                    victims.append((v, answer))
        self.log.append('%d (%s) %s: EDEADLK, spread: %s' % (w, self.spread[w].host, line, victims))
        if len(victims) != 1 or victims[0][1] != 'EDEADLK':
            raise Mismatch('%s of worker %d is a deadlock; spread: %s' % (line, w, victims))

    def get(self, w, slot, ofd, mode, whence, start, length):
        if mode == 'u' and not ofd:
            mode = 'r'
        first, end = self.model.range_of(w, slot, whence, start, length)
        line = 'fc %sgetlk %d %s %s %d %d' % ('o' if ofd else '', slot, mode, whence, start, length)
        a, b = self.both(w, line)
        right = {True: {'ok u'}, False: {'ok u'}}
        for spread in right:
            seen = {self.shown(w, owner, lock, spread) for owner, *lock in self.model.in_the_way(self.owner(w, slot, ofd), first, end, mode)}
            if seen:
                right[spread] = seen
        if mode == 'u' and a == 'EINVAL':       # before Linux 6.13
            right = {True: {a}, False: {a}}
        for spread, answer in ((False, a), (True, b)):
            if answer not in right[spread]:
                raise Mismatch('%s of worker %d%s: %s; right were %s' % (line, w, ' spread' if spread else ' (the model is wrong)', answer, sorted(right[spread])))

    def shown(self, w, owner, lock, spread):
        start, end, mode = lock
        if owner[0] == 'o':
            pid = -1
        elif not spread:
            pid = self.kernel[owner[1]].nspid
        else:
            there = self.spread[owner[1]]
            pid = there.nspid if there.host == self.spread[w].host else -there.nspid
        return 'ok %s %d %d %d' % (mode, start, 0 if end == END else end - start, pid)

    def run(self):
        """None, or what differs."""
        try:
            self.begin()
            for step in self.steps:
                self.step(step)
                if not self.over:
                    self.settle()
                if self.over:
                    break
            else:
                time.sleep(0.01 if self.blocked else 0)
                self.settle()
            return None
        except Mismatch as e:
            return str(e)
        finally:
            self.end()


def make_steps(rng, workers, count):
    """What each step wants; what becomes of it depends on who waits then."""
    wide = rng.random() < 0.2                   # sometimes offsets over all 63 bits
    steps = []

    def where():
        whence = rng.choice('sssssce')
        if whence == 'e':
            start = -rng.randrange(0, 40)
        elif wide and rng.random() < 0.5 and whence == 's':
            start = rng.choice([0, 5, 1 << 30, (1 << 31) - 3, 1 << 31, (1 << 32) - 2, 1 << 32, 1 << 62, MAX - 10, MAX])
        else:
            start = rng.randrange(0, 40)
        length = rng.choice([0, 1, 2, 3, 5, 8, 13, 20, 40])
        if start == MAX:
            length = rng.choice([0, 1])
        if start > MAX - 50:
            length = min(length, MAX - start)
        if whence == 's' and length and start >= length and rng.random() < 0.2:
            length = -length
        return whence, start, length

    for _ in range(count):
        w, pick, dice = rng.randrange(workers), rng.randrange(1000), rng.random()
        ofd = rng.random() < 0.4
        mode = rng.choice('rrwwwu')
        if dice < 0.62:
            steps.append(['set', w, pick, ofd, rng.random() < 0.45, mode, *where()])
        elif dice < 0.80:
            steps.append(['get', w, pick, ofd, mode, *where()])
        elif dice < 0.86:
            steps.append(['lockf', w, pick, rng.choice(['lock', 'tlock', 'ulock', 'test', 'test']), rng.choice([0, 1, 5, 10, 30])])
        elif dice < 0.89:
            steps.append(['seek', w, pick, rng.randrange(0, 40)])
        elif dice < 0.92:
            steps.append(['close', w, pick])
        elif dice < 0.94:
            steps.append(['dup', w, pick])
        elif dice < 0.97:
            steps.append(['open', w, pick])
        else:
            steps.append(['signal', w, pick])
    return steps


def main():
    directory, seed, sequences, length, keep = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    workers = {}
    for text in sys.argv[6:]:
        name, text = text.split('=', 1)
        workers[name] = Worker(text)
    kernel = [w for w in workers.values() if w.host == 'k']
    world = (kernel, [workers[w.partner] for w in kernel])
    for worker in workers.values():
        worker.ask('alarm 2000000000 interrupt')        # the handler; the alarm itself never comes
    number = 0

    def run(steps):
        nonlocal number
        number += 1
        one = Run(world, number, steps)
        return one.run(), one

    if os.path.exists(keep):
        with open(keep) as f:
            sequence = json.load(f)
        difference, one = run(sequence['steps'])
        print('\n'.join(one.log))
        print('replayed %s: %s' % (keep, difference or 'no difference'))
        return 1 if difference else 0
    total = 0
    began = time.monotonic()
    for n in range(sequences):
        steps = make_steps(random.Random(seed * 100003 + n), len(kernel), length)
        difference, one = run(steps)
        total += len(one.log)
        if not difference:
            continue
        print('sequence %d of seed %d: %s' % (n, seed, difference))
        end = time.monotonic() + float(os.environ.get('SHRINK_S', 60))
        size = len(steps) // 2
        while size and time.monotonic() < end:          # leave out halves, quarters, … single steps
            start = 0
            while start < len(steps) and time.monotonic() < end:
                shorter = steps[:start] + steps[start + size:]
                found, shorter_run = run(shorter)
                if found:
                    steps, difference, one = shorter, found, shorter_run
                else:
                    start += size
            size //= 2
        with open(keep, 'w') as f:
            json.dump({'seed': seed, 'sequence': n, 'difference': difference, 'steps': steps}, f)
        print('made shorter, %d steps, kept in %s: %s' % (len(steps), keep, difference))
        print('\n'.join(one.log))
        return 1
    print('%d sequences, %d calls, no difference, %.1f s' % (sequences, total, time.monotonic() - began))
    return 0


sys.exit(main())
