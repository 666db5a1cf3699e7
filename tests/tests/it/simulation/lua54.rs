//! The scripts under Lua 5.4, as Dragonfly embeds it, over the same histories as under Lua 5.1. There numbers are
//! integers or floats, and look different as text.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use super::*;

/// Which of the scripts, as they stand in the interpreter's arguments.
const TOKEN_BUCKET: usize = 1;
const ADJUST: usize = 2;

/// An interpreter with the stubs of `tests/lua/stubs.lua`; it ends with the value.
struct Lua54 {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Lua54 {
    fn start() -> Self {
        let process = Command::new("lua5.4")
            .arg("lua/stubs.lua")
            .args(["../lua/token_bucket.lua", "../lua/adjust.lua"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = process.expect("`lua5.4` in the PATH (Debian: apt-get install lua5.4)");
        Self {
            input: process.stdin.take().expect("a pipe"),
            output: BufReader::new(process.stdout.take().expect("a pipe")),
            process,
        }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("a running interpreter");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("an answer");
        answer.trim_end().to_owned()
    }

    fn call(&mut self, script: usize, now: u64, keys: &[String], args: &[String]) -> String {
        let (count, keys, args) = (keys.len(), keys.join(" "), args.join(" "));
        self.ask(&format!("call {script} {now} {count} {keys} {args}"))
    }
}

impl Drop for Lua54 {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        self.process.wait().expect("our own child");
    }
}

/// What the interpreter would answer: the reply, and each key's value and time of expiry.
fn answer(script: &Simulated, keys: &[String], reply: &[i64]) -> String {
    let reply: Vec<_> = reply.iter().map(ToString::to_string).collect();
    let mut keyspace = script.keyspace.borrow_mut();
    let states = keys.iter().map(|key| match keyspace.entry(key.as_bytes()) {
        None => "-".to_owned(),
        Some(Entry {
            value: Stored::Text(value),
            expires_at,
        }) => {
            let mut state = String::new();
            for byte in value {
                write!(state, "{byte:02x}").expect("a text");
            }
            let at = expires_at.map_or("never".to_owned(), |at| at.to_string());
            format!("{state}:{at}")
        }
        Some(_) => panic!("a bucket is a string"),
    });
    let states: Vec<_> = states.collect();
    format!("{} | {}", reply.join(" "), states.join(" "))
}

fn check_against_51(
    script: &Simulated,
    adjust: &Simulated,
    lua54: &mut Lua54,
    history: &History,
) -> Result<(), TestCaseError> {
    *script.keyspace.borrow_mut() = Keyspace {
        now: START,
        ..Keyspace::default()
    };
    lua54.ask("forget");
    for (i, step) in history.steps.iter().enumerate() {
        let check = to_check(&history.quotas, step);
        let keys: Vec<_> = check
            .charges()
            .iter()
            .map(|it| it.key.to_string())
            .collect();
        let now = after(
            step.event,
            script.keyspace.borrow().now,
            &history.quotas[0][0],
        );
        script.keyspace.borrow_mut().now = now;
        if let Event::Persist(key) = step.event {
            let key = &keys[key % keys.len()];
            if let Some(entry) = script.keyspace.borrow_mut().entry(key.as_bytes()) {
                entry.expires_at = None;
            }
            lua54.ask(&format!("persist {now} {key}"));
        }
        let (reply, answered) = match to_adjustment(&history.quotas, step) {
            Some(adjustment) => (
                adjust.adjust(&adjustment),
                lua54.call(ADJUST, now, &keys, &adjust_argv(&adjustment)),
            ),
            None => (
                script.check(&check),
                lua54.call(TOKEN_BUCKET, now, &keys, &argv(&check)),
            ),
        };
        prop_assert_eq!(answered, answer(script, &keys, &reply), "step {}", i);
    }
    Ok(())
}

#[test]
fn scripts_answer_and_write_the_same_under_lua_5_1_and_5_4() {
    let script = Simulated::new(Script::TOKEN_BUCKET);
    let adjust = Simulated::on(script.keyspace.clone(), Script::ADJUST);
    let lua54 = RefCell::new(Lua54::start());
    run(histories(true), |history| {
        check_against_51(&script, &adjust, &mut lua54.borrow_mut(), history)
    });
}
