//! One probe of one client, and what it needs: the identity expression, the
//! driver kept on a short leash, the graveyard for what is given up.

pub mod answer;
pub mod canary;
pub mod endpoint;
pub mod exchange;
pub mod identity;
pub mod intern;
pub mod leash;
pub mod ledger;
pub mod mysql;
