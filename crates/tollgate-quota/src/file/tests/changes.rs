//! What happens when the file changes, in all the ways in which files do.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::{
    LimitsFile, QuotaEvent, Quotas,
    file::watched::{Look, Watched},
};

const BAD: &str = "[limits.default]\nquota = { capacity = 5, refil = \"1/s\" }\n";

fn good(capacity: u32) -> String {
    format!("[limits.default]\nquota = {{ capacity = {capacity}, rate = 1 }}\n")
}

/// A watched file, whose looks are the test's to make.
struct Lab {
    directory: TempDir,
    path: PathBuf,
    watched: Watched,
    quotas: ArcSwap<Quotas>,
    events: Arc<Mutex<Vec<bool>>>,
}

impl Lab {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("limits.toml");
        fs::write(&path, good(10)).expect("a file");
        Self::on(directory, path)
    }

    fn on(directory: TempDir, path: PathBuf) -> Self {
        let (watched, quotas) = Watched::open(&path).expect("a good file");
        let events = Arc::<Mutex<Vec<_>>>::default();
        let heard = events.clone();
        watched.listen(Arc::new(move |event| {
            let QuotaEvent::Reloaded { ok } = event else {
                panic!("{event:?}");
            };
            heard.lock().expect("no panic").push(ok);
        }));
        Self {
            directory,
            path,
            watched,
            quotas: ArcSwap::from_pointee(quotas),
            events,
        }
    }

    fn look(&self) -> Look {
        self.watched.look(&self.quotas)
    }

    /// Looks until the file is settled.
    fn settle(&self) {
        for _ in 0..3 {
            if self.look() == Look::Settled {
                return;
            }
        }
        panic!("still unsettled");
    }

    fn write(&self, text: &str) {
        fs::write(&self.path, text).expect("a file");
    }

    #[track_caller]
    fn assert_in_force(&self, capacity: u32) {
        assert_eq!(**self.quotas.load(), quotas(&good(capacity)));
    }

    /// What was told since the last call.
    fn events(&self) -> Vec<bool> {
        std::mem::take(&mut self.events.lock().expect("no panic"))
    }
}

fn quotas(text: &str) -> Quotas {
    LimitsFile::parse(text, "test").expect("a good text").quotas
}

#[test]
fn a_new_content_is_taken_when_it_is_the_same_twice() {
    let lab = Lab::new();
    assert_eq!(lab.look(), Look::Settled);
    lab.write(&good(11));
    assert_eq!(lab.look(), Look::Unsettled);
    lab.assert_in_force(10);
    assert_eq!(lab.look(), Look::Settled);
    lab.assert_in_force(11);
    assert_eq!(lab.events(), [true]);
    assert_eq!(lab.look(), Look::Settled);
    assert!(lab.events().is_empty(), "nothing new");
}

#[test]
fn a_file_that_is_being_written_is_not_taken() {
    let lab = Lab::new();
    let half = "[limits.default]\nquota = \"3/s\"\n";
    let whole = format!("{half}[limits.other]\nquota = \"4/s\"\n");
    let mut file = fs::File::create(&lab.path).expect("a file");
    assert_eq!(lab.look(), Look::Unsettled, "empty");
    file.write_all(half.as_bytes()).expect("written");
    assert_eq!(lab.look(), Look::Unsettled, "valid, but only half");
    lab.assert_in_force(10);
    file.write_all(&whole.as_bytes()[half.len()..])
        .expect("written");
    assert_eq!(lab.look(), Look::Unsettled);
    assert_eq!(lab.look(), Look::Settled);
    assert_eq!(**lab.quotas.load(), quotas(&whole));
    assert_eq!(lab.events(), [true], "neither half was looked into");
}

#[test]
fn a_change_that_is_taken_back_is_none() {
    let lab = Lab::new();
    lab.write(BAD);
    assert_eq!(lab.look(), Look::Unsettled);
    lab.write(&good(10));
    assert_eq!(lab.look(), Look::Settled);
    lab.write(BAD);
    assert_eq!(lab.look(), Look::Unsettled, "seen anew");
    assert!(lab.events().is_empty());
}

#[test]
fn an_editor_renames_over_it() {
    let lab = Lab::new();
    let other = lab.directory.path().join(".limits.toml.swp");
    fs::write(&other, good(12)).expect("a file");
    fs::rename(&other, &lab.path).expect("renamed");
    lab.settle();
    lab.assert_in_force(12);
}

/// A mounted ConfigMap as kubelet lays it out: the file is a link into `..data`, which is a link to a
/// directory with a time in its name. An update replaces the middle link by a rename.
#[test]
fn kubernetes_swaps_a_link_in_the_path() {
    let directory = TempDir::new().expect("a directory");
    let mount = directory.path().to_owned();
    let publish = |version: &str, text: &str| {
        fs::create_dir(mount.join(version)).expect("a directory");
        fs::write(mount.join(version).join("limits.toml"), text).expect("a file");
        symlink(version, mount.join("..data_tmp")).expect("a link");
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("renamed");
    };
    publish("..2026_01_01", &good(10));
    let path = mount.join("limits.toml");
    symlink("..data/limits.toml", &path).expect("a link");
    let lab = Lab::on(directory, path);

    publish("..2026_01_02", &good(13));
    fs::remove_dir_all(mount.join("..2026_01_01")).expect("removed");
    lab.settle();
    lab.assert_in_force(13);

    publish("..2026_01_03", BAD);
    lab.settle();
    lab.assert_in_force(13);
    publish("..2026_01_04", &good(14));
    lab.settle();
    lab.assert_in_force(14);
    assert_eq!(lab.events(), [true, false, true]);
}

#[test]
fn a_bad_file_keeps_the_whole_old_set_and_is_told_once() {
    let lab = Lab::new();
    let before = lab.quotas.load_full();
    // Good lines around the bad one are not taken either.
    lab.write(&format!("{BAD}[limits.other]\nquota = \"1/s\"\n"));
    for _ in 0..5 {
        lab.settle();
    }
    assert!(Arc::ptr_eq(&before, &lab.quotas.load_full()));
    assert_eq!(lab.events(), [false]);
    lab.write(BAD);
    lab.settle();
    assert_eq!(lab.events(), [false], "another bad one");
    lab.write(&good(15));
    lab.settle();
    lab.assert_in_force(15);
    assert_eq!(lab.events(), [true]);
}

#[test]
fn what_is_refused_at_the_start_is_refused_at_a_reload() {
    let lab = Lab::new();
    let limit = good(10);
    let bad = [
        BAD.to_owned(),
        format!("{limit}[tenants.a]\n[tenants.a]\n"),
        format!("{limit}[tenants.a]\ntier = \"gold\"\n"),
        format!("{limit}[tenants.\"\"]\n"),
        format!("{limit}cost = -1\n"),
    ];
    let values = ["0", "-1", "nan", "inf", "1e309"];
    let capacities = values.map(|it| format!("limits.a.quota = {{ capacity = {it}, rate = 1 }}"));
    let rates = values.map(|it| format!("limits.a.quota = {{ capacity = 1, rate = {it} }}"));
    let spans = ["5/0s", "5/-1s"].map(|it| format!("limits.a.quota = \"{it}\""));
    for text in bad.into_iter().chain(capacities).chain(rates).chain(spans) {
        lab.write(&text);
        let at_start = Watched::open(&lab.path).err().expect("refused");
        assert_eq!(lab.watched.reload(&lab.quotas), Err(at_start), "{text}");
        lab.assert_in_force(10);
        assert_eq!(lab.events(), [false]);
    }
}

#[test]
fn a_deleted_file_keeps_what_was_in_force_until_it_is_back() {
    let lab = Lab::new();
    fs::remove_file(&lab.path).expect("removed");
    for _ in 0..3 {
        lab.settle();
    }
    lab.assert_in_force(10);
    assert_eq!(lab.events(), [false]);
    let before = lab.quotas.load_full();
    lab.write(&good(10));
    lab.settle();
    assert_eq!(lab.events(), [true], "in force again");
    assert!(Arc::ptr_eq(&before, &lab.quotas.load_full()));
    fs::remove_file(&lab.path).expect("removed");
    assert_eq!(lab.look(), Look::Unsettled);
    lab.write(&good(16));
    lab.settle();
    lab.assert_in_force(16);
    assert_eq!(lab.events(), [true], "gone for a moment only");
}

#[test]
fn an_edited_comment_swaps_nothing() {
    let lab = Lab::new();
    let before = lab.quotas.load_full();
    lab.write(&format!("# as before\n{}", good(10)));
    lab.settle();
    assert_eq!(lab.events(), [true]);
    assert!(Arc::ptr_eq(&before, &lab.quotas.load_full()));
}

#[test]
fn a_reload_by_hand_needs_no_second_look() {
    let lab = Lab::new();
    lab.write(&good(17));
    assert_eq!(lab.watched.reload(&lab.quotas), Ok(()));
    lab.assert_in_force(17);
    lab.write(BAD);
    assert!(lab.watched.reload(&lab.quotas).is_err());
    lab.assert_in_force(17);
    assert_eq!(lab.events(), [true, false]);
    assert_eq!(lab.look(), Look::Settled, "known already");
}

#[test]
fn what_is_no_limits_file_is_said() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let refusal = |path: &Path| {
        let error = LimitsFile::read(path).expect_err("refused").to_string();
        let name = path.display().to_string();
        error.strip_prefix(&name).expect("the name").to_owned()
    };
    assert_eq!(
        refusal(&path("missing.toml")),
        ": cannot be read: No such file or directory (os error 2)"
    );
    assert_eq!(
        refusal(directory.path()),
        ": is a directory, not a limits file"
    );
    assert_eq!(refusal(Path::new("/dev/zero")), ": is not a regular file");
    let latin1 = path("latin1.toml");
    fs::write(&latin1, b"# M\xfcnchen\n").expect("a file");
    assert_eq!(refusal(&latin1), ": is not UTF-8 text: byte 3 is wrong");
    let huge = path("huge.toml");
    let file = fs::File::create(&huge).expect("a file");
    file.set_len(16 * 1024 * 1024 + 1).expect("a length");
    assert_eq!(
        refusal(&huge),
        ": is larger than 16 MiB, too large for a limits file"
    );
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The lines since the last call, without the name of the file.
    fn lines(&self, path: &Path) -> Vec<String> {
        let log = std::mem::take(&mut *self.0.lock().expect("no panic"));
        let log = String::from_utf8(log).expect("text");
        let log = log.replace(&path.display().to_string(), "FILE");
        log.lines().map(|line| line.trim().to_owned()).collect()
    }
}

#[test]
fn the_log_says_each_thing_once() {
    let log = Log::default();
    let writer = log.clone();
    // With a single dispatcher, tracing asks that of the thread which first comes by a line of log, and another
    // test's has none. With two it asks them all.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let lab = Lab::new();
    let lines = || log.lines(&lab.path);
    assert_eq!(lines(), ["INFO the limits file FILE is in force"]);
    lab.write("[limits.default]\nquota = \"0/s\"\n[limits.other]\nquota = \"0/s\"\n");
    for _ in 0..3 {
        lab.settle();
    }
    let problem = "rate `0/s` must be above 0 and at most 10^6 tokens per second";
    assert_eq!(
        lines(),
        [format!(
            "ERROR the limits file is refused, what was in force stays: FILE:2:9: limits.default.quota: {problem}; FILE:4:9: limits.other.quota: {problem}"
        )]
    );
    fs::remove_file(&lab.path).expect("removed");
    for _ in 0..3 {
        lab.settle();
    }
    assert_eq!(
        lines(),
        [
            "ERROR the limits file is refused, what was in force stays: FILE: cannot be read: No such file or directory (os error 2)"
        ]
    );
    lab.write("[limits.default]\nquota = \"1/s\"\n[limits.daily]\nquota = \"1000/d\"\n");
    for _ in 0..3 {
        lab.settle();
    }
    assert_eq!(
        lines(),
        [
            "WARN FILE:3:9: limits.daily: a bucket takes a day or longer to fill: a store that loses its data gives everybody a full one anew",
            "INFO the limits file FILE is in force",
        ]
    );
}

/// The real watch, from a change to the listener.
#[tokio::test]
async fn a_change_arrives_without_being_asked_for() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("limits.toml");
    fs::write(&path, good(10)).expect("a file");
    let file = LimitsFile::open_with_interval(&path, Duration::from_millis(20)).expect("good");
    let (tell, mut told) = mpsc::unbounded_channel();
    file.listen(Arc::new(move |event| {
        let _ = tell.send(event);
    }));
    let mut next = async || {
        let event = tokio::time::timeout(Duration::from_secs(60), told.recv());
        event.await.expect("an event")
    };
    fs::write(&path, good(20)).expect("a file");
    assert_eq!(next().await, Some(QuotaEvent::Reloaded { ok: true }));
    assert_eq!(*file.current(), quotas(&good(20)));

    // Whoever holds the quotas alone keeps the watch alive.
    let in_force = file.clone().quotas();
    drop(file);
    fs::write(&path, good(30)).expect("a file");
    assert_eq!(next().await, Some(QuotaEvent::Reloaded { ok: true }));
    assert_eq!(**in_force.load(), quotas(&good(30)));

    drop(in_force);
    assert_eq!(next().await, None, "the watch has ended");
}

/// With the default interval, on a paused clock.
#[tokio::test(start_paused = true)]
async fn a_change_is_in_force_within_two_seconds() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("limits.toml");
    fs::write(&path, good(10)).expect("a file");
    let file = LimitsFile::open(&path).expect("good");
    let (tell, mut told) = mpsc::unbounded_channel();
    file.listen(Arc::new(move |event| {
        let _ = tell.send(event);
    }));
    // The worst moment: just after a look.
    tokio::time::sleep(Duration::from_millis(1_001)).await;
    fs::write(&path, good(20)).expect("a file");
    let changed = tokio::time::Instant::now();
    assert_eq!(told.recv().await, Some(QuotaEvent::Reloaded { ok: true }));
    assert!(changed.elapsed() <= Duration::from_secs(2));
    assert_eq!(*file.current(), quotas(&good(20)));
}
