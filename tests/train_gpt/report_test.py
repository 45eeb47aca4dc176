"""report.html from a recorded bench: well-formed, complete, and right with anything missing."""
import copy
import json
import pathlib
import re
import shutil
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))

import bench_report
import bench_summary
import bench_svg
import bench_theory
import bench_timeline

RECORDED = HERE / "recorded_bench"
SECTIONS = ["Throughput", "Where a step's time goes", "Loss", "Memory",
            "Bytes moved, against theory", "Every step", "One step, rank by rank", "The numbers"]

NOTHING_TO_COMPARE = {"ddp_fsdp_bitwise": None, "single_max_rel_loss_diff": None, "ok": True}


def recorded():
    return json.loads((RECORDED / "summary.json").read_text())


def parse(page):
    """The page as a tree; it is written so that an XML parser takes it too."""
    assert page.startswith("<!DOCTYPE html>\n")
    return xml.etree.ElementTree.fromstring(page.split("\n", 1)[1])


def texts(tree, tag):
    return ["".join(found.itertext()) for found in tree.iter(tag)]


def fail(run):
    """What a summary has of a run that never got to a step."""
    run.update(exit_code=1, reason='error: <no> "luck" & more', steps=0, tokens_per_s=None,
               optimizer_s=None, data_s=None, split=None, comm=None, overlap_share=None, memory=[],
               efficiency=None, exposed_s=None, speedup=None, params_xxh3=None,
               step_s={"median": None, "min": None, "max": None, "iqr": None, "n": 0},
               loss={"first": None, "last": None, "validation": None})


class Report(unittest.TestCase):
    def render(self, summary, folder=RECORDED):
        page = bench_report.render(summary, folder)
        for outside in ("<script", "http:", "https:", "url(", "@import", "src="):
            self.assertNotIn(outside, page)
        self.assertIsNone(re.search(r"\b(nan|inf|None)\b", page))
        return parse(page)

    def test_recorded_bench_has_every_figure_and_strategy(self):
        summary = recorded()
        tree = self.render(summary)
        self.assertEqual(texts(tree, "h2"), SECTIONS)
        self.assertEqual(len(list(tree.iter("figure"))), 6 + len(summary["runs"]))
        for run in summary["runs"]:
            name = run["strategy"]
            self.assertIn(name, texts(tree, "h3"), "a timeline")
            self.assertTrue(any(text.startswith(name) for text in texts(tree, "div")), "a tile")
            self.assertIn(name, texts(tree, "td"), "a row of the table")
        tips = texts(tree, "title")
        for part in ("rank 1: all_reduce bucket 0", "rank 0: gather", "unit backward",
                     "ddp: theory, 2P(N-1)/N", "fsdp: theory, 3P(N-1)/N", "optimizer state: ",
                     "waiting for other ranks: ", "validation"):
            self.assertTrue(any(part in tip for tip in tips), part)
        for axis in ("tokens trained", "nats a byte", "tokens per second", "MiB a rank",
                     "milliseconds since the step began"):
            self.assertTrue(any(axis in text for text in texts(tree, "text")), axis)
        foot = texts(tree, "footer")[0]
        self.assertIn(summary["machine"]["cpu"], foot)
        self.assertIn(summary["convoy"]["commit"], foot)

    def test_numbers_of_drawings_are_finite_and_inside(self):
        tree = self.render(recorded())
        for picture in tree.iter("svg"):
            if "viewBox" not in picture.attrib:
                continue
            _, _, width, height = (float(text) for text in picture.get("viewBox").split())
            for one in picture.iter("rect"):
                x, wide = float(one.get("x")), float(one.get("width"))
                self.assertGreaterEqual(x, 0)
                self.assertLessEqual(x + wide, width + 0.5)
                self.assertLessEqual(float(one.get("y")) + float(one.get("height")), height)

    def test_a_failed_run_is_shown_as_failed_and_the_others_stay(self):
        for at in range(len(recorded()["runs"])):
            summary = recorded()
            fail(summary["runs"][at])
            summary["agreement"] = dict(NOTHING_TO_COMPARE)
            name = summary["runs"][at]["strategy"]
            tree = self.render(summary)
            self.assertEqual(texts(tree, "h2"), SECTIONS)
            self.assertTrue(any("failed" in text and '<no> "luck" & more' in text
                                for text in texts(tree, "td")), name)
            self.assertIn(f"{name}failed", "".join(texts(tree, "div")))

    def test_all_runs_failed(self):
        summary = recorded()
        for run in summary["runs"]:
            fail(run)
        summary["agreement"] = dict(NOTHING_TO_COMPARE)
        with tempfile.TemporaryDirectory() as empty:
            tree = self.render(summary, pathlib.Path(empty))
        self.assertNotIn("figure", [found.tag for found in tree.iter()])

    def test_fields_that_are_missing_leave_out_what_they_would_show(self):
        whole = recorded()
        for field in ("split", "comm", "overlap_share", "efficiency", "speedup", "exposed_s"):
            summary = copy.deepcopy(whole)
            for run in summary["runs"]:
                run[field] = None
            self.assertEqual(len(texts(self.render(summary), "h3")), len(whole["runs"]) +
                             (3 if field == "comm" else 4), field)
        summary = copy.deepcopy(whole)
        summary.update(parameters=None, libtorch=None,
                       convoy={"version": None, "commit": None, "build_type": None})
        summary["data"] = {"paths": ["x"], "bytes": None, "unigram_nats": None}
        for run in summary["runs"]:
            run["memory"] = [{key: None for key in part} for part in run["memory"]]
        self.render(summary)

    def test_any_list_of_strategies_and_ranks(self):
        summary = recorded()
        ddp = next(run for run in summary["runs"] if run["strategy"] == "ddp")
        for ranks in (1, 3, 8):
            runs = []
            for name in ("ddp", "zero1", "a strategy with a long name", "fsdp"):
                run = copy.deepcopy(ddp)
                run.update(strategy=name, ranks=ranks, memory=ddp["memory"][:1] * ranks)
                runs.append(run)
            summary["runs"] = runs
            self.assertTrue(any("zero1" in text for text in texts(self.render(summary), "text")))

    def test_a_loss_that_is_not_finite_leaves_a_gap(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(RECORDED, folder, dirs_exist_ok=True)
            path = folder / "ddp.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            next(line for line in lines if line["event"] == "step")["loss"] = None
            path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut sho')
            (folder / "fsdp.trace.json").write_text("{")
            self.assertNotIn("fsdp", texts(self.render(recorded(), folder), "h3"))


class Parts(unittest.TestCase):
    def test_theory(self):
        comm = {"all_reduce": {"payload_bytes": 400, "copied_bytes": 5, "wire_bytes": 0}}
        found = bench_theory.traffic({"strategy": "ddp", "ranks": 4, "comm": comm}, 100)
        self.assertEqual((found.theory, found.ring, found.stored), (600, 600, 5))
        comm = {"all_gather": {"payload_bytes": 800}, "reduce_scatter": {"payload_bytes": 100}}
        found = bench_theory.traffic({"strategy": "fsdp", "ranks": 4, "comm": comm}, 100)
        self.assertEqual((found.theory, found.ring), (900, 900))
        self.assertIsNone(bench_theory.traffic({"strategy": "single", "ranks": 1, "comm": {}}, 1))

    def test_split_adds_up_to_the_step(self):
        steps = [{"step_s": 1.0 + at, "comm_wait_s": 0.3, "optimizer_s": 0.2,
                  "optimizer_wait_s": 0.1, "data_s": 0.01} for at in (0, 0, 0, 9)]
        split = bench_summary.split_of(steps)
        self.assertAlmostEqual(split["compute_s"], 0.6)
        self.assertAlmostEqual(split["compute_s"] + split["wait_s"] + split["optimizer_s"], 1.0)
        self.assertIsNone(bench_summary.split_of([]))
        self.assertIsNone(bench_summary.split_of([{"step_s": 1.0}]))

    def test_axes(self):
        self.assertEqual(bench_svg.ticks(0, 10, 5), [0, 2, 4, 6, 8, 10])
        self.assertEqual(bench_svg.ticks(3, 3)[0], 3)
        self.assertEqual(bench_svg.tick_text(1500, 500), "1,500")
        self.assertEqual(bench_svg.tick_text(0.25, 0.05), "0.25")
        self.assertEqual(bench_svg.shortened("collectives", 1000), "collectives")
        self.assertEqual(bench_svg.shortened("collectives", 5), "")

    def test_timeline_takes_the_timed_step_of_median_length(self):
        def step(number, length):
            return bench_timeline.Span("step", "step", str(number), "step", "training",
                                       number * 100.0, number * 100.0 + length, 0)
        ranks = [[step(1, 90), step(2, 10), step(3, 30), step(4, 20)]]
        self.assertEqual(bench_timeline.typical_step(ranks, 1).of, "4")
        self.assertIsNone(bench_timeline.typical_step([[]], 1))

    def test_agreement_is_known_only_of_strategies_that_ran(self):
        def run(strategy, bits="same", exit_code=0):
            events = [{"event": "start", "config": {"dtype": "fp32"}},
                      {"event": "step", "step": 1, "loss": 2.5},
                      {"event": "end", "params_xxh3": bits}]
            return types.SimpleNamespace(planned=types.SimpleNamespace(strategy=strategy),
                                         exit_code=exit_code, events=[events])

        def found(*runs):
            agreement = bench_summary.agree(runs)
            return agreement["ddp_fsdp_bitwise"], agreement["parallel_bitwise"], agreement["ok"]

        self.assertEqual(found(run("single"), run("ddp"), run("fsdp")), (True, True, True))
        self.assertEqual(found(run("ddp"), run("fsdp", "other")), (False, False, False))
        self.assertEqual(found(run("ddp"), run("zero1")), (None, True, True))
        self.assertEqual(found(run("ddp"), run("zero1", "other")), (None, False, False))
        self.assertEqual(found(run("ddp"), run("zero1"), run("fsdp", "other", exit_code=1)),
                         (None, True, True))
        self.assertEqual(found(run("ddp"), run("zero1", "other"), run("fsdp")),
                         (True, False, False))
        self.assertEqual(found(run("single"), run("fsdp")), (None, None, True))
        self.assertEqual(found(run("single"), run("alone")), (None, None, True))


if __name__ == "__main__":
    unittest.main()
