//! What a person may type besides messages.

use super::show::Think;
use clap::ValueEnum;
use std::path::PathBuf;

/// A command with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Help,
    Clear,
    /// `None`: show it.
    System(Option<String>),
    Regenerate,
    Undo,
    Edit,
    Save(PathBuf),
    Load(PathBuf),
    /// Name and value; `None`: show them.
    Set(Option<(String, String)>),
    Think(Think),
    Copy,
    Stats,
    Context,
    Exit,
}

/// One turn of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    Message(String),
    Command(Command),
    /// A command that cannot be carried out, and why.
    Wrong(String),
    /// Ctrl-D, the end of the input, or a signal.
    Leave,
}

/// Name, what follows it, and what it does.
const COMMANDS: [(&str, &str, &str); 14] = [
    ("/help", "", "lists the commands"),
    ("/clear", "", "starts over"),
    ("/system", "[TEXT]", "shows or sets the system prompt"),
    ("/regenerate", "", "answers the last message once more"),
    ("/undo", "", "takes back the last message and its reply"),
    (
        "/edit",
        "",
        "changes the last message in $EDITOR, and sends it",
    ),
    ("/save", "FILE", "writes the messages as JSON"),
    ("/load", "FILE", "goes on from messages that were saved"),
    (
        "/set",
        "[NAME VALUE]",
        "shows or changes how tokens are chosen",
    ),
    (
        "/think",
        "show|hide|off",
        "what becomes of a model's thinking",
    ),
    ("/copy", "", "puts the last reply on the clipboard"),
    ("/stats", "", "tokens evaluated, and how fast"),
    ("/context", "", "tokens used of the context"),
    ("/exit", "", "leaves, as Ctrl-D does"),
];

/// The names of all commands.
pub fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(name, _, _)| *name)
}

/// Lines that explain the commands and keys.
pub fn help() -> Vec<String> {
    let lines = COMMANDS.iter().map(|(name, more, what)| {
        let call = format!("{name} {more}");
        format!("{call:<22} {what}")
    });
    let mut lines: Vec<String> = lines.collect();
    lines.push(
        "Ctrl-C stops a reply; \"\"\" opens and closes a message of several lines, a backslash \
         at the end of a line continues it; //word sends /word to the model"
            .to_string(),
    );
    lines
}

/// What a text means; `None` when it is empty.
pub fn turn(text: &str) -> Option<Turn> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return None;
    }
    let (name, rest) = match trimmed.split_once(char::is_whitespace) {
        Some((name, rest)) => (name, rest.trim()),
        None => (trimmed, ""),
    };
    if name.strip_prefix('/').is_some_and(could_be_command) {
        return Some(Turn::Message(text.replacen("//", "/", 1)));
    }
    if !could_be_command(name) {
        return Some(Turn::Message(text.to_string()));
    }
    Some(match command(&name.to_ascii_lowercase(), rest) {
        Ok(command) => Turn::Command(command),
        Err(why) => Turn::Wrong(why),
    })
}

/// A slash and letters: paths and the like are messages.
fn could_be_command(word: &str) -> bool {
    let letters = word.strip_prefix('/').unwrap_or_default();
    !letters.is_empty() && letters.chars().all(|c| c.is_ascii_alphabetic())
}

fn command(name: &str, rest: &str) -> Result<Command, String> {
    let needs = |what: &str| format!("{name} needs {what}; /help lists the commands");
    let file = || match rest {
        "" => Err(needs("the name of a file")),
        _ => Ok(PathBuf::from(rest)),
    };
    let command = match name {
        "/system" => Command::System((!rest.is_empty()).then(|| rest.to_string())),
        "/save" => Command::Save(file()?),
        "/load" => Command::Load(file()?),
        "/set" => match rest.split_once([' ', '=']) {
            Some((name, value)) => Command::Set(Some((name.to_string(), value.trim().to_string()))),
            None if rest.is_empty() => Command::Set(None),
            None => return Err(needs("a name and a value")),
        },
        "/think" => match Think::from_str(rest, true) {
            Ok(think) => Command::Think(think),
            Err(_) => return Err(needs("show, hide or off")),
        },
        "/help" => Command::Help,
        "/clear" => Command::Clear,
        "/regenerate" => Command::Regenerate,
        "/undo" => Command::Undo,
        "/edit" => Command::Edit,
        "/copy" => Command::Copy,
        "/stats" => Command::Stats,
        "/context" => Command::Context,
        "/exit" | "/quit" => Command::Exit,
        _ => {
            return Err(format!(
                "there is no command {name}; /help lists them, and /{name} sends it to the model"
            ));
        }
    };
    let takes_more = COMMANDS
        .iter()
        .any(|(n, more, _)| *n == name && !more.is_empty());
    match takes_more || rest.is_empty() {
        true => Ok(command),
        false => Err(format!(
            "{name} takes nothing more; /help lists the commands"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{COMMANDS, Command, Think, Turn, help, turn};

    #[test]
    fn commands_are_whole_messages() {
        let command = |text| match turn(text) {
            Some(Turn::Command(command)) => Some(command),
            _ => None,
        };
        assert_eq!(command("/exit"), Some(Command::Exit));
        assert_eq!(command(" /clear "), Some(Command::Clear));
        assert_eq!(command("/HELP"), Some(Command::Help));
        assert_eq!(
            command("/Save My.json"),
            Some(Command::Save("My.json".into()))
        );
        let system = Command::System(Some("be  brief\nand kind".to_string()));
        assert_eq!(command("/system be  brief\nand kind"), Some(system));
        assert_eq!(command("/system"), Some(Command::System(None)));
        assert_eq!(
            command("/save my chat.json"),
            Some(Command::Save("my chat.json".into()))
        );
        let set = Command::Set(Some(("top-k".to_string(), "5".to_string())));
        assert_eq!(command("/set top-k 5"), Some(set.clone()));
        assert_eq!(command("/set top-k=5"), Some(set));
        assert_eq!(command("/think hide"), Some(Command::Think(Think::Hide)));
        assert_eq!(turn("  "), None);
    }

    #[test]
    fn paths_and_texts_are_messages() {
        for text in [
            "/usr/bin holds what?",
            "/etc/passwd",
            "/",
            "/ help",
            "/9",
            "a /help",
        ] {
            assert_eq!(turn(text), Some(Turn::Message(text.to_string())), "{text}");
        }
    }

    #[test]
    fn two_slashes_send_one() {
        for (text, sent) in [
            ("//hi", "/hi"),
            (" //help me\n//x", " /help me\n//x"),
            // Of code that was pasted nothing is dropped.
            ("// hi", "// hi"),
            ("///hi", "///hi"),
            ("//srv/share", "//srv/share"),
        ] {
            assert_eq!(turn(text), Some(Turn::Message(sent.to_string())), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("/halp", "no command /halp"),
            ("/halp", "//halp sends it"),
            ("/save", "file"),
            ("/set temp", "value"),
            ("/think maybe", "show, hide or off"),
            ("/undo 3", "nothing more"),
        ] {
            match turn(text) {
                Some(Turn::Wrong(why)) => assert!(why.contains(part), "{why}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn every_command_of_the_table_is_known() {
        for (name, more, _) in COMMANDS {
            let line = format!(
                "{name} {}",
                more.trim_matches(['[', ']'])
                    .split('|')
                    .next()
                    .unwrap_or_default()
            );
            assert!(matches!(turn(&line), Some(Turn::Command(_))), "{line}");
            assert!(help().iter().any(|l| l.starts_with(name)), "{name}");
        }
    }
}
