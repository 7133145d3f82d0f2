//! A real terminal: a window of a tmux server that the test starts without user configuration. The test reads the
//! screen and sends keys; the server ends with the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use cxloe_system::pair::{Outcome, ensure, eventually};

pub struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// Opens a terminal of this size with a shell, and puts the socket of the tmux server into `folder`.
    pub fn open(folder: &Path, width: u16, height: u16) -> Outcome<Terminal> {
        let terminal = Terminal { socket: folder.join("tmux") };
        let (width, height) = (width.to_string(), height.to_string());
        let shell = "env -i PATH=\"$PATH\" TERM=screen LC_ALL=C.UTF-8 PS1='> ' sh";
        let session = ["new-session", "-d", "-x", &width, "-y", &height, shell];
        // Without tmux's status line, the shell has the whole window.
        let plain =
            [";", "set-option", "-g", "status", "off", ";", "resize-window", "-x", &width, "-y", &height];
        terminal.tmux(&[&session[..], &plain].concat())?;
        Ok(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Outcome<String> {
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-f").arg("/dev/null").arg("-S").arg(&self.socket).args(arguments);
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        let output = command
            .output()
            .map_err(|error| format!("tmux: {error}; deploy/install/need.sh tmux installs it"))?;
        let output_text = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), format!("tmux {}: {output_text}", arguments.join(" ")))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Text on the screen.
    pub fn screen(&self) -> Outcome<String> {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Types a line into the shell and presses Enter.
    pub fn command(&self, line: &str) -> Outcome {
        self.tmux(&["send-keys", "-l", line])?;
        self.key("Enter")
    }

    /// Presses a key, which is named as in tmux.
    pub fn key(&self, key: &str) -> Outcome {
        self.tmux(&["send-keys", key]).map(drop)
    }

    pub fn resize(&self, width: u16, height: u16) -> Outcome {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]).map(drop)
    }

    /// Waits until the screen satisfies `wanted`; returns the screen.
    pub fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Outcome<String> {
        let found = eventually(what, || self.screen().ok().filter(|screen| wanted(screen)));
        found.map_err(|error| {
            let screen = self.screen().unwrap_or_default();
            format!("{}; the screen:\n{screen}", error.message().unwrap_or_default()).into()
        })
    }

    /// Waits until all of these words are on the screen.
    pub fn shows(&self, words: &[&str]) -> Outcome<String> {
        self.until(&format!("{words:?} on the screen"), |screen| {
            words.iter().all(|word| screen.contains(word))
        })
    }

    /// Two flags of the terminal: whether a program uses the alternate screen, and whether the cursor is
    /// visible.
    pub fn state(&self) -> Outcome<(bool, bool)> {
        let state = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"])?;
        let mut flags = state.split_whitespace().map(|flag| flag == "1");
        Ok((flags.next().unwrap_or(false), flags.next().unwrap_or(false)))
    }

    /// Checks that a program has restored the terminal: main screen, cursor, echo and line mode.
    pub fn is_given_back(&self) -> Outcome {
        eventually("the screen is the shell's again", || {
            self.state().ok().filter(|state| *state == (false, true))
        })?;
        self.command(
            "stty -a | tr ' ;' '\\n\\n' | grep -x -e icanon -e echo -e isig -e opost | sort | tr '\\n' '.'",
        )?;
        self.shows(&["echo.icanon.isig.opost."]).map(drop)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
