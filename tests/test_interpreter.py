"""The interpreter of PTX itself: the results of instructions, and the mistakes that it must detect."""

import itertools

import numpy as np
import pytest

from tests.interpreter.machine import Machine, Sizes
from tests.interpreter.memory import FaultError, GlobalMemory
from tests.interpreter.program import parse

pytestmark = pytest.mark.quick

N = 64
HEAD = """
.visible .entry kernel(.param .u64 input, .param .u64 output)
{
    .reg .pred %p<9>;
    .reg .b16 %rs<9>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<20>;
    .shared .align 256 .b8 words[256];
    ld.param.u64 %rd1, [input];
    ld.param.u64 %rd2, [output];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 8;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    shl.b32 %r9, %r1, 2;
    mov.u32 %r10, words;
    add.s32 %r2, %r10, %r9;
    xor.b32 %r3, %r2, 128;
"""
RESULT = "st.global.u64 [%rd5], %rd9;"


def run(body, given=None, *, n_threads=N, n_blocks=1, n_grid=1):
    """Run a kernel whose threads read 8 bytes each and write as many; return the results and the races."""
    memory = GlobalMemory()
    given = np.zeros(N, np.uint64) if given is None else given
    results = np.zeros(N, np.uint64)
    program = parse(HEAD + body + "ret;\n}\n")
    sizes = Sizes(n_grid, n_threads, n_blocks)
    machine = Machine(program, memory, sizes, [memory.add(given), memory.add(results)])
    machine.are_messages_late = True
    races = machine.run()
    memory.settle()
    return results, races


def test_threads_of_different_branches_meet_again():
    body = f"""
    setp.lt.u32 %p1, %r1, 10;
    mov.u32 %r4, 0;
    @%p1 bra $first;
    LOOP: add.s32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r1; @%p2 bra LOOP;
    $first: bar.warp.sync -1;
    redux.sync.add.u32 %r5, %r4, 0xffffffff;
    cvt.u64.u32 %rd9, %r5; {RESULT}"""
    found, _ = run(body)
    assert found.tolist() == [sum(range(10, 32))] * 32 + [sum(range(32, 64))] * 32


def test_shuffles_and_votes():
    body = f"""
    shfl.sync.bfly.b32 %r4, %r1, 3, 31, 0xffffffff;
    shfl.sync.up.b32 %r5|%p1, %r1, 1, 0, 0xffffffff;
    vote.sync.ballot.b32 %r6, %p1, 0xffffffff;
    mad.lo.s32 %r7, %r4, 100, %r5;
    mov.b64 %rd9, {{%r7, %r6}}; {RESULT}"""
    found, _ = run(body)
    threads = np.arange(N)
    expected = (threads ^ 3) * 100 + np.where(threads % 32 == 0, threads, threads - 1)
    assert found.tolist() == [int(x) + (0xFFFFFFFE << 32) for x in expected]


WRITE, READ = "st.shared.u32 [%r2], %r1;", "ld.shared.u32 %r4, [%r3]; cvt.u64.u32 %rd9, %r4;"


def test_a_barrier_between_warps():
    found, races = run(f"{WRITE} bar.sync 0; {READ} {RESULT}")
    assert found.tolist() == [x ^ 32 for x in range(N)]
    assert not races


@pytest.mark.parametrize(
    "body",
    [
        f"{WRITE} {READ}",
        f"{WRITE} bar.sync 0; {READ} st.shared.u32 [%r2], %r3;",
        f"{WRITE} bar.sync 0; {READ} atom.shared.add.u32 %r5, [%r2], 1;",
        "st.shared.u32 [%r10], %r1;",
        f"{WRITE} barrier.cluster.arrive; {READ} barrier.cluster.wait;",
    ],
    ids=["read too soon", "overwritten too soon", "counted too soon", "two values", "before the wait"],
)
def test_races(body):
    assert run(body)[1]


@pytest.mark.parametrize(
    ("store", "between", "is_seen"),
    [
        ("", "", False),
        ("", "bar.warp.sync -1;", False),
        ("", "bar.sync 0;", True),
        (".relaxed.gpu", "", True),
    ],
)
def test_stores_are_seen_late_by_other_warps(store, between, is_seen):
    found, _ = run(f"""
    st{store}.global.u64 [%rd4], %rd3; {between}
    xor.b32 %r4, %r1, 32; mul.wide.u32 %rd6, %r4, 8; add.s64 %rd6, %rd6, %rd1; ld.global.u64 %rd9, [%rd6];
    {RESULT}""")
    assert found.tolist() == [8 * (thread ^ 32) if is_seen else 0 for thread in range(N)]


def test_another_launch_is_seen_by_those_who_wait():
    memory, words, results = GlobalMemory(), np.zeros(N, np.uint64), np.zeros(N, np.uint64)
    addresses = [memory.add(words), memory.add(results)]
    read_twice = "ld.global.u64 %rd6, [%rd4]; griddepcontrol.wait; ld.global.u64 %rd7, [%rd4];"
    for body in ("st.global.u64 [%rd4], %rd3;", f"{read_twice} sub.s64 %rd9, %rd7, %rd6; {RESULT}"):
        Machine(parse(HEAD + body + "ret;\n}\n"), memory, Sizes(1, N), addresses).run()
    memory.settle()
    assert results.tolist() == [8 * thread for thread in range(N)]


RELEASE = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
# After it, all blocks run, and nothing else is known.
RELAXED = RELEASE.replace("release", "relaxed")
CLUSTER_SUM = f"""
    mov.u32 %r4, %cluster_ctarank;
    st.shared.u32 [%r2], %r4;
    {RELEASE}
    mov.u32 %r6, 0; mov.u32 %r5, 0;
    NEXT: mapa.shared::cluster.u32 %r7, %r3, %r5;
    ld.shared::cluster.u32 %r8, [%r7];
    add.s32 %r6, %r6, %r8; add.s32 %r5, %r5, 1;
    setp.lt.u32 %p1, %r5, 4; @%p1 bra NEXT;
    cvt.u64.u32 %rd9, %r6;
"""


def test_shared_memory_begins_as_badly_as_it_may():
    """An array has the alignment that it asks for and no more; a dynamic array is always aligned to 16."""
    declared = {"few": 4, "pairs": 8, "many": 128}
    orders = set()
    for number in range(20):
        program = parse(
            ".extern .shared .align 4 .b8 loose[]; .extern .shared .align 128 .b8 aligned[];\n"
            f".visible .entry kernel_{number}() {{"
            + "".join(f".shared .align {alignment} .b8 {name}[20];" for name, alignment in declared.items())
            + "ret; }"
        )
        begins = {name: program.shared[name] for name in declared}
        assert {name: begin % (2 * declared[name]) for name, begin in begins.items()} == declared
        order = sorted(begins, key=begins.get)
        assert all(begins[one] + 20 <= begins[next] for one, next in itertools.pairwise(order))
        assert program.shared["loose"] == program.shared["aligned"] >= begins[order[-1]] + 20
        assert program.shared["loose"] % 32 == 16
        orders.add(tuple(order))
    assert len(orders) > 3


@pytest.mark.parametrize(
    ("wait", "expected"),
    [("", 7), ("wait_group 2;", 7), ("wait_group 1;", 1), ("wait_group 0;", 2), ("wait_all;", 2)],
)
def test_copies_arrive_when_a_thread_waits(wait, expected):
    results, races = run(
        f"""
    mov.u32 %r4, 7;
    st.shared.u32 [%r2], %r4;
    cp.async.ca.shared.global [%r2], [%rd4], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r2], [%rd4+4], 4;
    cp.async.commit_group;
    {wait and "cp.async." + wait}
    ld.shared.u32 %r4, [%r2];
    cvt.u64.u32 %rd9, %r4;
    {RESULT}""",
        np.full(N, 2 << 32 | 1, np.uint64),
    )
    assert (results == expected).all()
    assert not races


WAIT = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r11], 0;"
# Each block of a pair announces 256 bytes to itself, and sends the other one as many.
MESSAGES = f"""
    .shared .align 8 .b8 barrier[8];
    mov.u32 %r11, barrier;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r11], 1;
    mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%r11], 256;
    READY: barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;
    mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;
    mapa.shared::cluster.u32 %r6, %r2, %r5; mapa.shared::cluster.u32 %r7, %r11, %r5;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], %r1, [%r7];
    {WAIT}
"""


def test_messages():
    found, races = run(f"{MESSAGES} {READ} {RESULT}", n_blocks=2, n_grid=2)
    assert found.tolist() == [x ^ 32 for x in range(N)]
    assert not races


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[%r11], 256", "[%r11], 260", "wait for ever"),
        ("[%r11], 256", "[%r11], 128", "has left"),
        (WAIT, "", "has left"),
        ("%p2, [%r11], 0;", "%p2, [%r11], 1;", "has left"),
        ("mbarrier.init.shared::cta.b64 [%r11], 1;", "", "no barrier is there"),
        ("cta.b64 [%r11], 1;", "cta.b64 [%r11], 2;", "wait for ever"),
        ("mapa.shared::cluster.u32 %r6, %r2, %r5;", "mov.u32 %r6, %r2;", "its barrier in another"),
        (
            "mov.u32 %r4, %cluster_ctarank;",
            "mov.u32 %r4, %cluster_ctarank; setp.ne.u32 %p3, %r4, 0; @%p3 ret;",
            "has left",
        ),
    ],
)
def test_wrong_messages(old, new, message):
    assert MESSAGES.count(old) == 1
    with pytest.raises(FaultError, match=message):
        run(f"{MESSAGES.replace(old, new)} {READ} {RESULT}", n_blocks=2, n_grid=2)


def test_memory_of_a_cluster():
    found, races = run(f"{CLUSTER_SUM} {RESULT} {RELEASE}", n_blocks=4, n_grid=4)
    assert found.tolist() == [0 + 1 + 2 + 3] * N
    assert not races


@pytest.mark.parametrize(
    "access", ["st.shared::cluster.u32 [%r6], %r1;", "ld.shared::cluster.u32 %r4, [%r6];"]
)
def test_other_blocks_of_a_cluster_may_not_have_begun(access):
    body = f"""
    mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1; mapa.shared::cluster.u32 %r6, %r2, %r5;
    {access} {RELEASE}"""
    with pytest.raises(FaultError, match="before all of the cluster run"):
        run(body, n_blocks=2, n_grid=2)


def test_races_in_a_cluster():
    assert run(CLUSTER_SUM.replace(RELEASE, f"{RELAXED} bar.sync 0;"), n_blocks=4, n_grid=4)[1]


@pytest.mark.parametrize("store", ["shared::cluster.u32 [%r6]", "shared.u32 [%r2]"], ids=["other", "own"])
def test_a_relaxed_arrival_tells_nothing(store):
    body = f"""
    {RELAXED}
    mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1; mapa.shared::cluster.u32 %r6, %r2, %r5;
    st.{store}, %r1; {RELEASE} {READ}"""
    assert not run(body, n_blocks=2, n_grid=2)[1]
    assert run(body.replace(RELEASE, RELAXED), n_blocks=2, n_grid=2)[1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("st.global.u64 [%rd5+8], %rd3;", "array of 512 bytes"),
        ("st.global.u64 [%rd5+4], %rd3;", "no multiple of 8"),
        ("ld.global.u64 %rd6, [%rd3];", "no array"),
        ("ld.shared.u32 %r4, [%r2+4];", "byte 512 of 512"),
        ("ld.shared.u32 %r4, [%r2+1];", "no multiple of 4"),
        (
            "mov.u32 %r5, 1; mapa.shared::cluster.u32 %r4, %r2, %r5; st.shared::cluster.u32 [%r4], %r1;",
            "block 1",
        ),
        ("div.u32 %r4, %r1, %r1;", "division by zero"),
        (
            "setp.lt.u32 %p1, %r1, 7; @%p1 bra A; bar.sync 0; bra B; A: bar.sync 0; B: mov.u32 %r4, 0;",
            "different",
        ),
        ("setp.lt.u32 %p1, %r1, 7; @%p1 ret; redux.sync.add.u32 %r4, %r1, -1;", "have left"),
        ("setp.lt.u32 %p1, %r1, 7; @%p1 bra A; bar.warp.sync -1; A: bar.sync 0;", "wait for ever"),
        ("mov.u32 %r5, 1; redux.sync.add.u32 %r4, %r1, %r5;", "own mask"),
    ],
)
def test_faults(body, message):
    with pytest.raises(FaultError, match=message):
        run(body)


def test_what_is_not_known_is_refused():
    with pytest.raises(NotImplementedError, match="not known: sin"):
        run("sin.approx.f32 %r4, %r1;")
