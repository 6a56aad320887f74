CREATE USER IF NOT EXISTS 'gapscope_admin'@'%' IDENTIFIED BY '@PASSWORD@';
GRANT ALL PRIVILEGES ON *.* TO 'gapscope_admin'@'%';
CREATE USER IF NOT EXISTS 'gapscope'@'%' IDENTIFIED BY '@PASSWORD@';
CREATE DATABASE IF NOT EXISTS gapscope;
GRANT ALL PRIVILEGES ON gapscope.* TO 'gapscope'@'%';
CREATE DATABASE IF NOT EXISTS gapscope_overhead;
GRANT SELECT, INSERT, CREATE, DROP ON gapscope_overhead.* TO 'gapscope'@'%';
CREATE USER IF NOT EXISTS 'gapscope_check'@'%';
