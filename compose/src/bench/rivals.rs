//! Other programs that send the same statement over one reused connection, as
//! often: `sysbench`, `mariadb-slap`, and `pymysql` in a Python loop.
//!
//! Time is what each program says of its own loop, so that none is charged for its
//! start. Processor time of the first two is that of the whole process, less that of
//! one that sends a single statement; Python says its own. The kernel gives the time
//! of ended children in ticks of 10 ms, which is 1 to 2 % of a loop of 20,000.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::loops::{Asked, Looped};
use super::options::Options;
use crate::folder::write_private;
use crate::runtime::process::find::{Named, find};

/// One other program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// `sysbench` with a script of one statement.
    Sysbench,
    /// `mariadb-slap`.
    MariadbSlap,
    /// `pymysql`: the usual driver of Python, written in Python.
    Pymysql,
}

impl Rival {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sysbench, Self::MariadbSlap, Self::Pymysql];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sysbench => "sysbench",
            Self::MariadbSlap => "mariadb-slap",
            Self::Pymysql => "pymysql",
        }
    }

    const fn program(self) -> &'static [&'static str] {
        match self {
            Self::Sysbench => &["sysbench"],
            Self::MariadbSlap => &["mariadb-slap", "mysqlslap"],
            Self::Pymysql => &["python3"],
        }
    }
}

/// A program that is there.
#[derive(Debug, Clone)]
pub struct Found {
    /// Which.
    pub rival: Rival,
    /// Where.
    pub path: PathBuf,
    /// What it says it is.
    pub version: String,
}

/// The first line that a program prints, whatever it is; none where it fails.
fn says(path: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(path)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Looks for a program; errs with what is missing.
pub fn look_for(rival: Rival, options: &Options) -> Result<Found, String> {
    let named: Named = options.program.iter().cloned().collect();
    let missing = || format!("{} is not here: not compared", rival.name());
    let path = match named.get("python3") {
        // As it was named: where it is linked from tells it which packages it has.
        Some(python) if rival == Rival::Pymysql => python.clone(),
        _ => find(&named, rival.program(), "").map_err(|_| missing())?,
    };
    let version = match rival {
        Rival::Pymysql => says(
            &path,
            &[
                "-c",
                "import sys, pymysql; print('pymysql', pymysql.__version__, 'on Python', \
                 sys.version.split()[0])",
            ],
        )
        .ok_or_else(|| {
            format!(
                "pymysql is not here ({} cannot import it): not compared; \
                 --program python3=PATH names another Python",
                path.display()
            )
        })?,
        _ => says(&path, &["--version"]).ok_or_else(missing)?,
    };
    Ok(Found {
        rival,
        path,
        version,
    })
}

/// A Python that has DuckDB; errs with what is missing.
pub fn python(options: &Options) -> Result<PathBuf, String> {
    let named: Named = options.program.iter().cloned().collect();
    let missing = "DuckDB's Python package is not here: nothing is compared with it; \
                   --program python3=PATH names a Python that has it";
    let path = match named.get("python3") {
        Some(python) => python.clone(),
        None => find(&named, &["python3"], "").map_err(|_| missing.to_owned())?,
    };
    match says(&path, &["-c", "import duckdb; print(duckdb.__version__)"]) {
        Some(_) => Ok(path),
        None => Err(missing.to_owned()),
    }
}

const SYSBENCH: &str = r#"
local statement = os.getenv("GAPSCOPE_STATEMENT")
local connection
function thread_init()
    connection = sysbench.sql.driver():connect()
end
function event()
    connection:query(statement)
end
function thread_done()
    connection:disconnect()
end
"#;

const PYMYSQL: &str = r#"
import os, time, pymysql
statement = os.environ["GAPSCOPE_STATEMENT"]
count = int(os.environ["GAPSCOPE_COUNT"])
connection = pymysql.connect(host=os.environ["GAPSCOPE_HOST"],
    port=int(os.environ["GAPSCOPE_PORT"]), user=os.environ["GAPSCOPE_USER"],
    password=os.environ["GAPSCOPE_PASSWORD"], autocommit=True)
cursor = connection.cursor()
for _ in range(min(count, 500)):
    cursor.execute(statement)
    cursor.fetchall()
wall, cpu = time.perf_counter(), time.process_time()
for _ in range(count):
    cursor.execute(statement)
    cursor.fetchall()
print((time.perf_counter() - wall) / count * 1e6, (time.process_time() - cpu) / count * 1e6)
"#;

/// Of the kernel's times for programs, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time of children that have ended and were waited for, in ticks of the
/// kernel's, as seconds.
fn children_cpu_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace().skip(13);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

/// Runs a program to its end; gives what it printed and its processor time.
fn run(command: &mut Command) -> Result<(String, f64), String> {
    let failed = |what: String| format!("{}: {what}", command_name(command));
    let before = children_cpu_s();
    let mut again = Command::new(command.get_program());
    again.args(command.get_args());
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            again.env(key, value);
        }
    }
    let output = again
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let cpu_s = children_cpu_s().zip(before).map_or(0.0, |(a, b)| a - b);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok((text, cpu_s));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().chain(text.lines()).rfind(|line| {
        let line = line.to_ascii_lowercase();
        line.contains("error") || line.contains("fatal")
    });
    Err(failed(format!(
        "{}: {}",
        output.status,
        said.unwrap_or("it does not say why").trim()
    )))
}

fn command_name(command: &Command) -> String {
    let path = Path::new(command.get_program());
    let name = path.file_name().unwrap_or(command.get_program());
    name.to_string_lossy().into_owned()
}

fn number_after(text: &str, before: &str) -> Option<f64> {
    let (_, rest) = text.split_once(before)?;
    let number = rest
        .trim_start()
        .split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .next()?;
    number.parse().ok()
}

impl Found {
    /// Sends the statement `count` times; blocks. `folder` is private.
    ///
    /// # Errors
    /// When the program fails, or says nothing that can be read.
    pub fn measure(&self, asked: &Asked, count: u64, folder: &Path) -> Result<Looped, String> {
        match self.rival {
            Rival::Pymysql => self.pymysql(asked, count),
            Rival::Sysbench | Rival::MariadbSlap => {
                // Its start, and its end.
                let (_, start_s) = self.once(asked, 1, folder)?;
                let (mean_us, cpu_s) = self.once(asked, count, folder)?;
                Ok(Looped {
                    mean_us,
                    cpu_us: (cpu_s - start_s).max(0.0) * 1e6 / (count - 1).max(1) as f64,
                })
            }
        }
    }

    fn once(&self, asked: &Asked, count: u64, folder: &Path) -> Result<(f64, f64), String> {
        let not_read = || format!("what {} printed cannot be read", self.rival.name());
        let mut command = Command::new(&self.path);
        if self.rival == Rival::Sysbench {
            // A password on a command line can be read by everybody on the host.
            let (script, config) = (folder.join("statement.lua"), folder.join("sysbench.cnf"));
            let text = format!(
                "mysql-host={}\nmysql-port={}\nmysql-user={}\nmysql-password={}\nmysql-db=\n",
                asked.address.ip(),
                asked.address.port(),
                asked.login.user,
                asked.login.password
            );
            for (path, text) in [(&script, SYSBENCH), (&config, text.as_str())] {
                write_private(path, text, None).map_err(|problem| problem.what)?;
            }
            command
                .arg(format!("--config-file={}", config.display()))
                .args(["--threads=1", "--time=0", "--db-driver=mysql"])
                .arg(format!("--events={count}"))
                .arg(&script)
                .arg("run")
                .env("GAPSCOPE_STATEMENT", asked.statement());
            let (text, cpu_s) = run(&mut command)?;
            let total_s = number_after(&text, "total time:").ok_or_else(not_read)?;
            let events = number_after(&text, "total number of events:").ok_or_else(not_read)?;
            if events != count as f64 {
                return Err(format!("sysbench sent {events} of {count} statements"));
            }
            return Ok((total_s * 1e6 / count as f64, cpu_s));
        }
        command
            .args(["--no-defaults", "--protocol=tcp", "--no-drop"])
            .args(["--concurrency=1", "--iterations=1"])
            .arg(format!("--host={}", asked.address.ip()))
            .arg(format!("--port={}", asked.address.port()))
            .arg(format!("--user={}", asked.login.user))
            .arg("--create-schema=information_schema")
            .arg(format!("--query={}", asked.statement()))
            .arg(format!("--number-of-queries={count}"))
            .env("MYSQL_PWD", &asked.login.password);
        let (text, cpu_s) = run(&mut command)?;
        let total_s = number_after(&text, "Average number of seconds to run all queries:")
            .ok_or_else(not_read)?;
        Ok((total_s * 1e6 / count as f64, cpu_s))
    }

    fn pymysql(&self, asked: &Asked, count: u64) -> Result<Looped, String> {
        let mut command = Command::new(&self.path);
        command
            .args(["-c", PYMYSQL])
            .env("GAPSCOPE_STATEMENT", asked.statement())
            .env("GAPSCOPE_COUNT", count.to_string())
            .env("GAPSCOPE_HOST", asked.address.ip().to_string())
            .env("GAPSCOPE_PORT", asked.address.port().to_string())
            .env("GAPSCOPE_USER", &asked.login.user)
            .env("GAPSCOPE_PASSWORD", &asked.login.password);
        let (text, _) = run(&mut command)?;
        let numbers: Vec<f64> = text
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        match numbers[..] {
            [mean_us, cpu_us] => Ok(Looped { mean_us, cpu_us }),
            _ => Err("what pymysql's loop printed cannot be read".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_words() {
        let text = "General statistics:\n    total time:                          1.2345s\n    \
                    total number of events:              20000\n";
        assert_eq!(number_after(text, "total time:"), Some(1.2345));
        assert_eq!(
            number_after(text, "total number of events:"),
            Some(20_000.0)
        );
        assert_eq!(number_after(text, "median"), None);
        let slap = "\tAverage number of seconds to run all queries: 0.512 seconds\n";
        let before = "Average number of seconds to run all queries:";
        assert_eq!(number_after(slap, before), Some(0.512));
    }

    #[test]
    fn a_child_s_time_is_counted_and_its_failure_said() {
        let before = children_cpu_s().expect("it can be read");
        let mut burns = Command::new("sh");
        burns.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
        let (_, cpu_s) = run(&mut burns).expect("it runs");
        assert!(cpu_s > 0.0);
        assert!(children_cpu_s().expect("it can be read") > before);
        let mut fails = Command::new("sh");
        fails.args(["-c", "echo 'FATAL: no such host' >&2; exit 3"]);
        let why = run(&mut fails).expect_err("it fails");
        assert!(why.contains("no such host") && why.contains('3'), "{why}");
    }
}
