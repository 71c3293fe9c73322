"""The recorder passes the `eventsourcing` library's own test cases, run here against a real file."""

import os
import shutil
import tempfile
from uuid import uuid4

import pytest
from eventsourcing.persistence import PersistenceError, StoredEvent
from eventsourcing.tests import persistence as cases  # by its module: pytest would collect the classes themselves

from sandkeep_store.eventlog.database import Database
from sandkeep_store.eventlog.eventsourcing_recorder import IntegrityError, LogRecorder


class OnDisk(cases.RecorderTestCase):
    """A new file for each test. Our streams are named by text, so that ids are text here too."""

    def setUp(self) -> None:
        directory = tempfile.mkdtemp(prefix="sandkeep-recorder-")
        self.addCleanup(shutil.rmtree, directory)
        self.database = Database(os.path.join(directory, "events.db"))
        self.addCleanup(self.database.close)

    def new_originator_id(self) -> str:
        return f"sbx_{uuid4().hex}"


class TestLogRecorder(OnDisk, cases.ApplicationRecorderTestCase[LogRecorder]):
    def create_recorder(self) -> LogRecorder:
        return LogRecorder(self.database)

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()

    def test_a_uuid_is_a_stream_by_its_text(self) -> None:
        recorder = self.create_recorder()
        number = uuid4()
        recorder.insert_events([StoredEvent(number, 1, "topic", b"{}")])
        assert recorder.select_events(number) == [StoredEvent(str(number), 1, "topic", b"{}")]

    def test_a_refused_insert_takes_no_position(self) -> None:
        recorder = self.create_recorder()
        event = StoredEvent("sbx_1", 1, "topic", b"{}")
        assert recorder.insert_events([event]) == [1]
        with pytest.raises(IntegrityError):
            recorder.insert_events([StoredEvent("sbx_2", 1, "topic", b"{}"), event])
        assert recorder.insert_events([StoredEvent("sbx_2", 1, "topic", b"{}")]) == [2]

    def test_errors_are_the_librarys(self) -> None:
        recorder = self.create_recorder()
        self.database.writer.close()
        with pytest.raises(PersistenceError):
            recorder.insert_events([StoredEvent("sbx_1", 1, "topic", b"{}")])


class TestPositionsDoNotInterleave(OnDisk, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> LogRecorder:
        return LogRecorder(self.database)
