//! Ends an engine and all that it started, by a process of our own between `bisect` and the engine.
//!
//! It starts the engine, reports how that ended, and then kills what the engine left: its process group, and on Linux every descendant, even one with a
//! session of its own (it is their "child subreaper": they become its children when their parents die). It does the same as soon as the pipe that `bisect`
//! holds is closed, on a timeout or because `bisect` itself is gone, for whatever reason.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

/// The hidden command by which this program is started as a keeper.
pub(crate) const COMMAND: &str = "keep-engine";

/// The exit code of a keeper, where the program's arguments ask for one. It is not a command of the command line: no user is to type it.
pub(crate) fn run_if_asked(mut arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    let is_keeper = arguments.next().is_some_and(|command| command == COMMAND);
    let (folder, line) = (arguments.next().filter(|_| is_keeper)?, arguments.next()?);
    Some(run(Path::new(&folder), &line))
}

/// An engine under its keeper. Dropping it ends the engine and all that it started.
pub(crate) struct Keeper(Child);

impl Keeper {
    /// Starts `line` through the shell, with its output in two files of `folder`; `describe` adds to its environment.
    ///
    /// # Errors
    /// When this program cannot be started again, or there is no shell.
    pub(crate) fn start(line: &str, folder: &Path, describe: impl FnOnce(&mut Command)) -> io::Result<Keeper> {
        let mut command = keeper(line, folder)?;
        describe(&mut command);
        in_a_group(&mut command).spawn().map(Keeper)
    }

    /// How the engine ended, if it has.
    ///
    /// # Errors
    /// When the system does not report it.
    pub(crate) fn try_status(&mut self) -> io::Result<Option<ExitStatus>> {
        match self.0.try_wait()? {
            Some(status) => self.engine_status(status).map(Some),
            None => Ok(None),
        }
    }
}

/// The outputs of an engine, in its run's folder.
fn outputs(folder: &Path) -> io::Result<[std::fs::File; 2]> {
    Ok([std::fs::File::create(folder.join("stdout"))?, std::fs::File::create(folder.join("stderr"))?])
}

/// A process group of its own, so that it can be ended with all its children, and is not ended by Ctrl-C elsewhere.
fn in_a_group(command: &mut Command) -> &mut Command {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    command
}

fn shell(line: &OsStr) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(line);
    command
}

#[cfg(unix)]
use unix::keeper;
#[cfg(unix)]
use unix::run;

#[cfg(unix)]
mod unix {
    use std::io::{Read, Write};
    use std::os::unix::process::ExitStatusExt;
    use std::path::PathBuf;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process, kill_process_group};

    use super::*;

    /// This program, started as the keeper of an engine.
    pub(crate) fn keeper(line: &str, folder: &Path) -> io::Result<Command> {
        // The running program, even if its file has been replaced since.
        let own = if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { std::env::current_exe()? };
        let mut command = Command::new(own);
        command.arg(COMMAND).arg(std::path::absolute(folder)?).arg(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(command)
    }

    impl Keeper {
        /// How the engine ended, which its keeper wrote before it ended with `status`.
        pub(super) fn engine_status(&mut self, status: ExitStatus) -> io::Result<ExitStatus> {
            let mut text = String::new();
            if let Some(mut pipe) = self.0.stdout.take() {
                pipe.read_to_string(&mut text)?;
            }
            match text.trim().parse() {
                Ok(raw) => Ok(ExitStatus::from_raw(raw)),
                // A keeper that reports nothing was killed, or found no shell: no success in either case.
                Err(_) if status.success() => {
                    Err(io::Error::other("the keeper of the engine did not say how it ended"))
                }
                Err(_) => Ok(status),
            }
        }
    }

    impl Drop for Keeper {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
        }
    }

    /// The keeper: starts the engine, waits until it or `bisect` ends, and leaves nothing behind. Returns the exit code.
    pub(super) fn run(folder: &Path, line: &OsString) -> u8 {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let started = outputs(folder).and_then(|[out, err]| {
            let mut command = shell(line);
            command.stdin(Stdio::null()).stdout(out).stderr(err);
            in_a_group(&mut command).spawn()
        });
        let Ok(mut engine) = started else { return 127 };
        let group = Pid::from_child(&engine);
        std::thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            kill_all(group);
            std::process::exit(0);
        });
        let ended = engine.wait();
        if let Ok(status) = ended {
            let _ = writeln!(io::stdout(), "{}", status.into_raw());
        }
        kill_all(group);
        u8::from(ended.is_err())
    }

    /// Kills a process group, and on Linux all descendants, until none is left: those started meanwhile are found in the next round.
    fn kill_all(group: Pid) {
        const LONGEST: Duration = Duration::from_secs(10);
        let _ = kill_process_group(group, Signal::KILL);
        let begun = Instant::now();
        loop {
            let left = descendants();
            if left.is_empty() || begun.elapsed() > LONGEST {
                return;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The running descendants of this process, by /proc; empty where there is no such folder.
    fn descendants() -> Vec<Pid> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let all: Vec<(i32, i32, bool)> =
            numbers.filter_map(|pid| parent(pid).map(|(of, runs)| (pid, of, runs))).collect();
        let mut found = vec![rustix::process::getpid().as_raw_nonzero().get()];
        let mut next = 0;
        while let Some(&of) = found.get(next) {
            found.extend(
                all.iter()
                    .filter(|(pid, parent, _)| *parent == of && !found.contains(pid))
                    .map(|(pid, ..)| *pid)
                    .collect::<Vec<_>>(),
            );
            next += 1;
        }
        let runs = |pid: &i32| all.iter().any(|(of, _, runs)| of == pid && *runs);
        found.into_iter().skip(1).filter(runs).filter_map(Pid::from_raw).collect()
    }

    /// The parent of a process, and whether it is running: one that has ended and was not waited for is not.
    fn parent(pid: i32) -> Option<(i32, bool)> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The process name before it may contain anything.
        let mut fields = text.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        Some((fields.next()?.parse().ok()?, !matches!(state, "Z" | "X")))
    }
}

#[cfg(not(unix))]
mod plain {
    use std::process::Stdio;

    use super::*;

    /// The engine itself: on this system, processes that it leaves behind are not ended.
    pub(super) fn keeper(line: &str, folder: &Path) -> io::Result<Command> {
        let [out, err] = outputs(folder)?;
        let mut command = shell(OsStr::new(line));
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        Ok(command)
    }

    impl Keeper {
        pub(super) fn engine_status(&mut self, status: ExitStatus) -> io::Result<ExitStatus> {
            Ok(status)
        }
    }

    impl Drop for Keeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// There is no keeper on this system.
    pub(super) fn run(_: &Path, _: &OsString) -> u8 {
        2
    }
}
#[cfg(not(unix))]
use plain::keeper;
#[cfg(not(unix))]
use plain::run;
