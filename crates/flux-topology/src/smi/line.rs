//! A line, freed of what terminals and pastes put into it.

use crate::Error;

/// A line of the text and its words.
pub(crate) struct Line {
    /// From 1.
    pub(crate) number: usize,
    /// What is left after control sequences.
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
}

/// A word, with the column that it begins in, from 1, in characters of what was given.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) column: usize,
    /// Its first byte in [`Line::text`].
    pub(crate) offset: usize,
}

impl Token {
    pub(crate) fn end_column(&self) -> usize {
        self.column + self.text.chars().count()
    }
}

impl Line {
    pub(crate) fn new(number: usize, raw: &str) -> Line {
        let mut text = String::new();
        let mut columns = Vec::new();
        let mut characters = raw.chars().enumerate().peekable();
        while let Some((column, character)) = characters.next() {
            match character {
                // ESC [ … letter: colours and underlines.
                '\u{1b}' => {
                    if characters.next_if(|&(_, next)| next == '[').is_some() {
                        while characters.next_if(|&(_, next)| !('@'..='~').contains(&next)).is_some() {}
                        characters.next();
                    }
                }
                '\r' => {}
                // Tables of wikis and issue trackers have bars between the columns.
                '|' => {
                    text.push(' ');
                    columns.push(column + 1);
                }
                _ => {
                    text.push(character);
                    columns.push(column + 1);
                }
            }
        }
        let tokens = tokens(&text, &columns);
        Line { number, text, tokens }
    }

    pub(crate) fn error(&self, column: usize, reason: String) -> Error {
        Error::BadMatrix { line: self.number, column, reason }
    }

    /// The column behind its last word.
    pub(crate) fn end_column(&self) -> usize {
        self.tokens.last().map_or(1, Token::end_column)
    }
}

/// The words; `columns` has the column of each character.
fn tokens(text: &str, columns: &[usize]) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut in_word = false;
    for ((offset, character), &column) in text.char_indices().zip(columns) {
        if character.is_whitespace() {
            in_word = false;
            continue;
        }
        match tokens.last_mut().filter(|_| in_word) {
            Some(token) => token.text.push(character),
            None => tokens.push(Token { text: character.to_string(), column, offset }),
        }
        in_word = true;
    }
    // The name of a part of a GPU is two words.
    let is_number = |token: &Token| token.text.bytes().all(|byte| byte.is_ascii_digit());
    let mut joined: Vec<Token> = Vec::new();
    for token in tokens {
        match joined.last_mut().filter(|last| last.text == "MIG" && is_number(&token)) {
            Some(last) => last.text = format!("MIG {}", token.text),
            None => joined.push(token),
        }
    }
    joined
}
