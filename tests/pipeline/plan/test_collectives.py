"""What is read from programs as XLA writes them; the numbers are by hand."""

from __future__ import annotations

from rljax.pipeline.plan.collectives import Collective, by_kind, collectives

GPU = """
HloModule jit_update

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}

%layer (state: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %state = (s32[], bf16[4,8]{1,0}) parameter(0)
  %index = s32[] get-tuple-element(%state), index=0
  %weights = bf16[4,8]{1,0} get-tuple-element(%state), index=1
  %gather = (bf16[4,8]{1,0}, bf16[32,8]{1,0}) all-gather-start(%weights), channel_id=1, dimensions={0}
  %whole = bf16[32,8]{1,0} all-gather-done(%gather)
  %scattered = bf16[4,8]{1,0} reduce-scatter(%whole), channel_id=1, dimensions={0}, to_apply=%sum
  ROOT %next = (s32[], bf16[4,8]{1,0}) tuple(%index, %scattered)
}

%more (state: (s32[], bf16[4,8])) -> pred[] {
  %state.1 = (s32[], bf16[4,8]{1,0}) parameter(0)
  %index.1 = s32[] get-tuple-element(%state.1), index=0
  %end = s32[] constant(99)
  ROOT %less = pred[] compare(%index.1, %end), direction=LT
}

ENTRY %main (p: bf16[4,8], q: f32[3]) -> f32[3] {
  %p = bf16[4,8]{1,0} parameter(0)
  %q = f32[3]{0} parameter(1)
  %zero = s32[] constant(0)
  %begin = (s32[], bf16[4,8]{1,0}) tuple(%zero, %p)
  %loop = (s32[], bf16[4,8]) while(%begin), condition=%more, body=%layer, backend_config={"known_trip_count":{"n":"28"}}
  %both = (f32[3]{0}, s32[]) all-reduce-start(%q, %zero), channel_id=2, to_apply=%sum
  %done = (f32[3]{0}, s32[]) all-reduce-done(%both)
  ROOT %out = f32[3]{0} get-tuple-element(%done), index=0
}
"""
TPU = """
HloModule jit_update

%begin_chain (a: bf16[1,192,256]) -> bf16[1,1536,256] {
  %a = bf16[1,192,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  ROOT %ag.1 = bf16[1,1536,256]{2,1,0:T(8,128)(2,1)} all-gather(%a), channel_id=7, frontend_attributes={chain_id="0"}
}

%go_on (b: bf16[1,192,256]) -> bf16[1,1536,256] {
  %b = bf16[1,192,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  ROOT %ag.2 = bf16[1,1536,256]{2,1,0:T(8,128)(2,1)} all-gather(%b), channel_id=7, frontend_attributes={chain_id="0"}
}

%ring (s: (u32[], u32[], bf16[1,192,256])) -> (u32[], u32[], bf16[1,192,256]) {
  %s = (u32[]{:T(128)}, u32[]{:T(128)}, bf16[1,192,256]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %part = bf16[1,192,256]{2,1,0:T(8,128)(2,1)} get-tuple-element(%s), index=2
  %sent = (bf16[1,192,256], bf16[1,192,256], u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%part), channel_id=3
  %kernel = f32[8]{0} custom-call(%part), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
}}, metadata={op_name="on more lines than one"}
  %fused = bf16[1,1536,256]{2,1,0:T(8,128)(2,1)} fusion(%part), kind=kCustom, calls=%go_on
  ROOT %t = (u32[], u32[], bf16[1,192,256]) tuple(%part)
}

%unfinished (u: (u32[], u32[], bf16[1,192,256])) -> pred[] {
  %u = (u32[]{:T(128)}, u32[]{:T(128)}, bf16[1,192,256]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %i = u32[]{:T(128)} get-tuple-element(%u), index=0
  %n = u32[]{:T(128)} get-tuple-element(%u), index=1
  ROOT %compare = pred[]{:T(512)} compare(%i, %n), direction=LT
}

ENTRY %main (v: bf16[1,192,256]) -> bf16[1,1536,256] {
  %v = bf16[1,192,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  %zero = u32[]{:T(128)} constant(0)
  %four = u32[]{:T(128)} constant(4)
  %copied = u32[]{:T(128)} copy(%four)
  %given = (u32[], u32[], bf16[1,192,256]) tuple(%zero, %copied, %v)
  %while = (u32[], u32[], bf16[1,192,256]) while(%given), condition=%unfinished, body=%ring
  ROOT %first = bf16[1,1536,256]{2,1,0:T(8,128)(2,1)} fusion(%v), kind=kCustom, calls=%begin_chain
}
"""


def test_collectives_of_a_loop_run_as_often_as_it_does() -> None:
    whole = (("bf16", (32, 8)),)
    assert collectives(GPU) == [
        Collective("all-gather", whole, 28),
        Collective("reduce-scatter", whole, 28),
        Collective("all-reduce", (("f32", (3,)), ("s32", ())), 1),
    ]
    assert by_kind(collectives(GPU)) == {
        "all-gather": (28, 28 * 512),
        "reduce-scatter": (28, 28 * 512),
        "all-reduce": (1, 16),
    }


def test_a_chained_gather_of_a_tpu_is_one_and_rings_are_counted() -> None:
    assert by_kind(collectives(TPU)) == {
        "all-gather": (1, 1536 * 256 * 2),
        "collective-permute": (4, 4 * 192 * 256 * 2),
    }
