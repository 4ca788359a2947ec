"""Streams in flight outlive a rank on a GPU that is killed or stopped."""

import signal
import time
import unittest

import faults_test
import rig


class LostRanks(faults_test.Work):
    # seconds until every rank has ended
    ENDS = {signal.SIGKILL: 1, signal.SIGSTOP: 5}

    def start_group(self):
        return self.cluster.start_group(2, "--device", "cuda", "--dtype", "f32",
                                        "--page-tokens", 16, "--num-pages", 4000)

    def end(self, ranks, lost, how):
        rig.os.kill(lost, how)
        start = time.monotonic()
        rig.wait_for("the ranks' end", lambda: not rig.running(ranks))
        return time.monotonic() - start

    def test_streams_outlive_a_lost_rank(self):
        group = self.start_group()
        self.register()
        requests = self.work(40)
        calm = self.cluster.batch(requests)
        for how, bound in self.ENDS.items():
            with self.subTest(how=how):
                before = self.cluster.metric("replays_total", reason="group_lost") or 0
                work = self.start_work(requests)
                rig.wait_for("a full batch",
                             lambda: self.cluster.status()["running_requests"] >= 32)
                ranks = group.children()
                self.assertLess(self.end(ranks, ranks[1], how), bound)
                self.assertNotEqual(group.wait(30), 0)
                group = self.start_group()
                self.assertEqual(work.wait(180), 0, work.text()[-2000:])
                answers = {line["label"]: line for line in work.answers()}
                for label, answer in calm.items():
                    self.assertEqual(answers[label]["samples"][0]["token_ids"],
                                     answer["samples"][0]["token_ids"], label)
                self.assertGreater(self.cluster.metric("replays_total", reason="group_lost"),
                                   before)


if __name__ == "__main__":
    unittest.main()
