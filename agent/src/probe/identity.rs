//! Which statement says which backend answers.
//!
//! The probe must not change the patient: behind ProxySQL any `@` in a statement
//! pins the session to one server and takes the proxy's retry away. So an
//! expression with `@` is used only if its owner gave it or nothing else works.

use std::sync::{Arc, Mutex, PoisonError};

use mysql_async::{Conn, Error};

use super::answer::{Ask, ask};

/// Where the expression comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The target's configuration or the run's plan.
    Given,
    /// `information_schema.GLOBAL_VARIABLES` (MariaDB).
    InformationSchema,
    /// `performance_schema.global_variables` (MySQL 8).
    PerformanceSchema,
    /// `@@hostname` and `@@port`: pins the session behind ProxySQL.
    SystemVariables,
}

impl Form {
    /// The ones that are tried, in order.
    pub const DEFAULTS: [Self; 3] = [
        Self::InformationSchema,
        Self::PerformanceSchema,
        Self::SystemVariables,
    ];

    const fn expression(self) -> &'static str {
        match self {
            Self::Given => "",
            Self::InformationSchema => {
                "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') \
                 FROM information_schema.GLOBAL_VARIABLES \
                 WHERE VARIABLE_NAME IN ('HOSTNAME', 'PORT')"
            }
            Self::PerformanceSchema => {
                "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') \
                 FROM performance_schema.global_variables \
                 WHERE VARIABLE_NAME IN ('hostname', 'port')"
            }
            Self::SystemVariables => "CONCAT(@@hostname, ':', @@port)",
        }
    }
}

/// An identity expression and the statements made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Where it comes from.
    pub form: Form,
    /// The SQL expression.
    pub expression: String,
    /// What a bare client asks.
    pub bare: Arc<str>,
    /// What a client with a user variable as canary asks.
    pub with_user_variable: Arc<str>,
}

impl Identity {
    fn of(form: Form, expression: &str) -> Self {
        let bare = format!(
            "SELECT CONNECTION_ID() AS id, VERSION() AS version, ({expression}) AS backend"
        );
        let with_user_variable = format!("{bare}, @gapscope_canary AS canary");
        Self {
            form,
            expression: expression.to_owned(),
            bare: bare.into(),
            with_user_variable: with_user_variable.into(),
        }
    }

    /// One of the defaults.
    pub fn default_of(form: Form) -> Self {
        Self::of(form, form.expression())
    }

    /// One that its owner gave.
    pub fn given(expression: &str) -> Self {
        Self::of(Form::Given, expression)
    }

    /// What has to be said beside results obtained with it.
    pub fn caveat(&self) -> Option<&'static str> {
        self.expression.contains('@').then_some(
            "the probe uses @@ or a user variable: behind ProxySQL it pins the session to one \
             server and takes the proxy's retry away",
        )
    }
}

/// The identity of one target, found out at the first connection that works.
#[derive(Debug, Default)]
pub struct IdentityCell {
    known: Mutex<Option<Arc<Identity>>>,
}

impl IdentityCell {
    /// Known beforehand.
    pub fn given(expression: &str) -> Self {
        Self {
            known: Mutex::new(Some(Arc::new(Identity::given(expression)))),
        }
    }

    /// What is known.
    pub fn get(&self) -> Option<Arc<Identity>> {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What is known, or else the first of the defaults that works on `conn`.
    /// Only an answer that says "there is no such thing here" or "not for you"
    /// moves on to the next: an outage must not choose the expression.
    pub async fn settle(&self, conn: &mut Conn) -> Result<Arc<Identity>, Error> {
        if let Some(known) = self.get() {
            return Ok(known);
        }
        let mut last = None;
        for form in Form::DEFAULTS {
            let identity = Identity::default_of(form);
            match ask(conn, &identity.bare).await {
                Ok(Ask::Answer(answer)) if !answer.backend.is_empty() => {
                    let identity = Arc::new(identity);
                    *self.known.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(identity.clone());
                    return Ok(identity);
                }
                Ok(_) => {}
                Err(Error::Server(error)) if is_unsupported(error.code) => {
                    last = Some(Error::Server(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            Error::Other("no default identity expression gives a value; configure one".into())
        }))
    }
}

/// Whether `expression` is one expression: it must not end the statement, hide
/// the rest of it or leave the parentheses it is put into. Whoever starts a run
/// may name an expression, and probing is read-only.
pub fn check_expression(expression: &str) -> Result<(), String> {
    for forbidden in [";", "--", "#", "/*", "\\", "\0"] {
        if expression.contains(forbidden) {
            return Err(format!(
                "the identity expression must not contain `{}`",
                forbidden.escape_default()
            ));
        }
    }
    let mut depth = 0i32;
    let mut quote = None;
    for c in expression.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"' | '`') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    if depth != 0 || quote.is_some() {
        return Err("the identity expression's parentheses or quotes do not match".to_owned());
    }
    if expression.trim().is_empty() {
        return Err("the identity expression is empty".to_owned());
    }
    Ok(())
}

/// Whether an error packet says "there is no such thing here" or "not for you":
/// neither comes from an outage.
pub fn is_unsupported(code: u16) -> bool {
    matches!(
        code,
        1044 | 1047
            | 1049
            | 1054
            | 1064
            | 1109
            | 1115
            | 1142
            | 1143
            | 1146
            | 1193
            | 1227
            | 1235
            | 1295
            | 1298
            | 1305
            | 1370
            | 3167
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_stays_within_its_parentheses() {
        for good in [
            "@@port",
            "db.whoami()",
            "CONCAT(@@hostname, ':)', @@port)",
            "(SELECT 1)",
        ] {
            assert_eq!(check_expression(good), Ok(()), "{good}");
        }
        for form in Form::DEFAULTS {
            assert_eq!(check_expression(form.expression()), Ok(()));
        }
        for bad in [
            "",
            " ",
            "1); DROP TABLE t; SELECT (1",
            "1) INTO OUTFILE '/x' -- ",
            "1) FROM t WHERE (1",
            "'",
            "(1",
            "1 /* (",
        ] {
            assert!(check_expression(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bare_client_asks_without_an_at_sign() {
        for form in [Form::InformationSchema, Form::PerformanceSchema] {
            let identity = Identity::default_of(form);
            assert!(!identity.bare.contains('@'), "{}", identity.bare);
            assert_eq!(identity.caveat(), None);
        }
        assert!(
            Identity::default_of(Form::SystemVariables)
                .caveat()
                .is_some()
        );
        assert!(Identity::given("my_db.whoami()").caveat().is_none());
        assert!(Identity::given("@@port").caveat().is_some());
    }
}
