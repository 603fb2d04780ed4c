#!/usr/bin/env python3
"""Runs one file of rdma-core's Python tests and prints a line per test and outcome.

Usage: suite.py MODULE [options of the tests: --dev, --port, --gid], in the folder that has `tests`.

Lines have tabs between columns: `test NAME` for each test before any runs, then `passed NAME`,
`skipped NAME REASON`, `failed NAME REASON`.
"""

import importlib
import os
import sys
import unittest


def say(word, test, reason=""):
    lines = [line for line in str(reason).splitlines() if line.strip()]
    # The last line of a trace says what happened.
    print(word, test.id(), lines[-1].strip() if lines else "", sep="\t", flush=True)


class Result(unittest.TestResult):
    def addSuccess(self, test):
        say("passed", test)

    def addSkip(self, test, reason):
        say("skipped", test, reason)

    def addFailure(self, test, error):
        say("failed", test, self._exc_info_to_string(error, test))

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            say("failed", test, self._exc_info_to_string(error, test))


def tests_of(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item


def main():
    module = sys.argv.pop(1)
    # The tests import each other as a package, and this module alone.
    sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "tests")]
    from args_parser import parser

    parser.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromModule(
        importlib.import_module("tests." + module)
    )
    for test in tests_of(suite):
        say("test", test)
    suite.run(Result())


main()
