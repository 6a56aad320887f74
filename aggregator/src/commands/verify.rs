//! `verify`: reads all that is stored of a run and says whether it is whole.

use std::path::PathBuf;

use gapscope_proto::plain::fitted;

use crate::exit::Exit;
use crate::output::{data, stdout_columns};
use crate::store::RunFolder;
use crate::store::verify::{Verified, verify};

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run's id, the beginning of it, `latest`, or its folder.
    #[arg(value_name = "RUN|FOLDER")]
    run: String,
    /// Where runs are kept.
    #[arg(long, default_value = "./runs", value_name = "DIR")]
    data: PathBuf,
}

/// Carries it out: exit 0 where all is there and sound, 4 where something is
/// damaged, lost or missing.
///
/// # Errors
/// When there is no such run, or this build cannot read it.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let folder = RunFolder::find(&args.data, &args.run)?;
    data(format_args!(
        "run {}: {}",
        folder.manifest().run_id,
        folder.standing().as_str()
    ));
    let found = verify(folder.path())?;
    let columns = Some(stdout_columns().unwrap_or(80));
    for line in lines(&found) {
        data(fitted(&line, columns));
    }
    Ok(if found.is_whole() {
        Exit::Ok
    } else {
        Exit::DataLost
    })
}

fn lines(found: &Verified) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(found.damage.iter().map(|what| format!("damage: {what}")));
    lines.extend(found.lacking.iter().map(|what| format!("lacking: {what}")));
    lines.extend(found.remarks.iter().map(|what| format!("note: {what}")));
    if found.without_checksum > 0 {
        lines.push(format!(
            "note: {} of {} files have no checksum: an older version wrote them",
            found.without_checksum, found.files
        ));
    }
    lines.push(format!(
        "books: {} sampled = {} stored + {} lost + {} missing",
        found.sampled,
        found.samples,
        span(found.lost),
        found.missing
    ));
    lines.push(match (found.damage.len(), found.lacking.len()) {
        (0, 0) if found.open > 0 => format!(
            "open: what is stored is sound ({} files); whether it is all is not known",
            found.files
        ),
        (0, 0) => format!(
            "sound: {} files read whole, nothing is missing",
            found.files
        ),
        (0, lacking) => format!(
            "incomplete: what is stored is sound ({} files), {lacking} finding{} of what is not",
            found.files,
            plural(lacking)
        ),
        (damage, _) => format!(
            "damaged: {damage} finding{} in {} files",
            plural(damage),
            found.files
        ),
    });
    lines
}

fn span((least, most): (u64, u64)) -> String {
    if least == most {
        most.to_string()
    } else {
        format!("{least} to {most}")
    }
}

const fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_verdict() {
        let mut found = Verified {
            files: 6,
            samples: 10,
            sampled: 12,
            lost: (0, 2),
            ..Verified::default()
        };
        assert_eq!(
            lines(&found),
            [
                "books: 12 sampled = 10 stored + 0 to 2 lost + 0 missing",
                "sound: 6 files read whole, nothing is missing"
            ]
        );
        found.lacking.push("samples 11 to 12 are lost".to_owned());
        assert!(lines(&found)[2].starts_with("incomplete: "));
        found.damage.push("its checksum does not hold".to_owned());
        let text = lines(&found);
        assert_eq!(text[0], "damage: its checksum does not hold");
        assert_eq!(text[3], "damaged: 1 finding in 6 files");
    }
}
