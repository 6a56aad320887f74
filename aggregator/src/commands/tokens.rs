//! `tokens`: makes bearer tokens, where certificates are too much.

use std::path::PathBuf;

use gapscope_proto::small_file;
use gapscope_proto::tls::Principal;

use crate::auth::tokens::{Tokens, line};
use crate::certs::{new_token, write};
use crate::exit::Exit;
use crate::output::{in_trouble, note};

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a token for somebody. The list gets its hash, a file the token itself.
    Add(Add),
}

/// `tokens add`.
#[derive(Debug, clap::Args)]
pub struct Add {
    /// Whose: agent:ID, operator, operator:NAME, viewer or viewer:NAME.
    #[arg(value_name = "WHOSE")]
    pub whose: Principal,
    /// The list that `serve --tokens` reads; made if it is not there.
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// Where the token goes; the file must not be there yet.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Carries it out. The token is never printed.
///
/// # Errors
/// When a file cannot be read or written.
pub fn run(command: Command) -> anyhow::Result<Exit> {
    let Command::Add(args) = command;
    let shown = args.tokens.display();
    let mut text = match small_file::read_text(&args.tokens, small_file::BY_HAND) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(anyhow::anyhow!("cannot read `{shown}`: {error}")),
    };
    Tokens::parse(&text).map_err(|mut trouble| {
        trouble.what = format!("`{shown}`, {}", trouble.what);
        in_trouble(trouble)
    })?;
    let token = new_token().map_err(in_trouble)?;
    // The token first: a hash without one would let nobody in.
    let out = zeroize::Zeroizing::new(format!("{}\n", &*token));
    write(&args.out, &out, 0o600, false).map_err(in_trouble)?;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&line(&token, &args.whose));
    text.push('\n');
    write(&args.tokens, &text, 0o600, true).map_err(in_trouble)?;
    note(format_args!(
        "{} is known by the token in {}: hand it over, keep no copy.\n\
         To take it back, remove its line from {shown}; a server in use notices.",
        args.whose,
        args.out.display()
    ));
    Ok(Exit::Ok)
}
